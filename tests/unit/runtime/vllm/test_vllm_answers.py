"""What vLLM is asked, and what becomes of its answers."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from math import inf
from typing import Any

import psutil
import pytest

from stoker.core.media import Media
from stoker.core.outline import GrammarText, Outline, ReasoningSpan
from stoker.core.params import BUILT_IN, SamplingParams
from stoker.engine.protocol import Accepted, Output
from stoker.engine.question_messages import AdapterChoice, Detokenize, Embed, ListSlots, Tokenize
from stoker.errors import (
    AdapterNotFound,
    BackendError,
    ContextLengthExceeded,
    EngineCrashed,
    InvalidInput,
    Overloaded,
    StokerError,
    UnsupportedParameter,
)
from stoker.runtime.vllm.completion import REFUSED, SAME_NAME, TRANSLATED, WITHOUT_EFFECT, completion_body
from stoker.text.messages import Message
from tests.unit.runtime.vllm.fake import Fake, answer, ask, event, usage
from tests.waiting import run, until


def test_every_sampling_parameter_is_sent_refused_or_without_effect():
    known = {*SAME_NAME, *TRANSLATED, *REFUSED, *WITHOUT_EFFECT}
    assert known == {field.name for field in fields(SamplingParams)}


def test_a_conversation_is_asked_in_tokens_and_answered_in_text(fake: Fake):
    async def test() -> None:
        async with fake.started() as runtime:
            prompt = runtime.render_chat([Message(role="user", content="hi")])
            outputs = await answer(runtime, ask(prompt))
            assert "".join(output.text for output in outputs) == "Hello"
            assert outputs[-1].finish_reason == "stop"
            assert outputs[-1].usage.completion_tokens == 6, "the end of the model counts"
            assert runtime.card.backend_version == "0.32.0"
            assert runtime.card.kv_tokens == 1600
            assert runtime.card.context_size == 128

    run(test())
    user = fake.tokens("user")
    assert fake.body()["prompt"][: 1 + len(user)] == [fake.letters["<|im_start|>"], *user]
    command = fake.asked()[0]["command"]
    assert command[:2] == ["serve", str(fake.model)]
    assert command[command.index("--max-num-seqs") + 1] == "2"


def test_sampling_is_that_of_the_request_then_of_the_model_then_of_stoker(fake: Fake):
    async def test() -> None:
        async with fake.started() as runtime:
            await answer(runtime, ask(top_p=0.5, max_tokens=7, logit_bias={5: 1.5, 6: -inf}, banned_token_ids=[7]))

    run(test())
    body = fake.body()
    assert (body["temperature"], body["top_p"], body["top_k"]) == (0.25, 0.5, BUILT_IN.top_k)
    assert body["logit_bias"] == {"5": 1.5, "6": -100.0, "7": -100.0}
    assert body["max_tokens"] == 7
    assert "stop" not in body


def test_the_ends_of_the_model_end_an_answer_unless_they_are_ignored():
    plain = completion_body([1], SamplingParams(stop_token_ids=[9]), 5, frozenset({2, 3}), cache_prompt=True)
    assert plain["stop_token_ids"] == [2, 3, 9]
    ignoring = SamplingParams(stop_token_ids=[9], ignore_eos=True)
    assert completion_body([1], ignoring, 5, frozenset({2, 3}), cache_prompt=True)["stop_token_ids"] == [9]
    assert "cache_salt" not in plain
    salts = {completion_body([1], ignoring, 5, frozenset(), cache_prompt=False)["cache_salt"] for _ in range(2)}
    assert len(salts) == 2, "no two requests share a prefix"


def test_text_is_made_of_tokens_also_where_events_cut_characters_and_stop_strings(fake: Fake):
    raw = ["Ã", "©", "a", "b", "c"]  # the bytes of é, then letters

    async def test() -> None:
        async with fake.started() as runtime:
            fake.plan(*(event(fake.tokens(part)) for part in raw), event([], finish="length"), usage(), "[DONE]")
            outputs = await answer(runtime, ask())
            assert "".join(output.text for output in outputs) == "éabc"
            assert outputs[-1].finish_reason == "length"
            outputs = await answer(runtime, ask(stop=["bc"]))
            assert "".join(output.text for output in outputs) == "éa"
            assert (outputs[-1].finish_reason, outputs[-1].stop_match) == ("stop", "bc")
            assert outputs[-1].usage.completion_tokens == 5
            outputs = await answer(runtime, ask(outline=Outline(ends=("bc",))))
            assert "".join(output.text for output in outputs) == "éa"
            assert (outputs[-1].finish_reason, outputs[-1].stop_match) == ("stop", None), "an end of the model's own"

    run(test())


def test_a_stop_token_is_told_and_no_text(fake: Fake):
    stop = fake.letters["!"]
    fake.plan(event(fake.tokens("ok!"), finish="stop", stop_reason=stop), usage(cached_tokens=1), "[DONE]")

    async def test() -> None:
        async with fake.started() as runtime:
            outputs = await answer(runtime, ask(stop_token_ids=[stop]))
            assert "".join(output.text for output in outputs) == "ok"
            assert outputs[-1].stop_match == stop
            assert outputs[-1].usage.cached_tokens == 1

    run(test())


def test_log_probabilities_have_ids_and_bytes(fake: Fake):
    first, other = fake.letters["a"], fake.letters["b"]
    found = {
        "tokens": [f"token_id:{first}"],
        "token_logprobs": [-0.5],
        "top_logprobs": [{f"token_id:{other}": -0.25, f"token_id:{first}": -0.5}],
    }
    fake.plan(event([first], finish="length", logprobs=found), usage(), "[DONE]")

    async def test() -> None:
        async with fake.started() as runtime:
            outputs = await answer(runtime, ask(logprobs=1))
            (position,) = [position for output in outputs for position in output.logprobs or []]
            chosen = position.chosen
            assert (chosen.token_id, chosen.logprob, chosen.token, position.is_text) == (first, -0.5, b"a", True)
            assert [top.token_id for top in position.top] == [other]
            outputs = await answer(runtime, ask(logprobs=1, stop_token_ids=[first]))
            (position,) = [position for output in outputs for position in output.logprobs or []]
            assert not position.is_text, "it only ends the answer"

    run(test())
    assert fake.body()["return_tokens_as_token_ids"] is True


def test_markers_and_reasoning_are_found_in_the_tokens(fake: Fake):
    marker = fake.letters["<|im_start|>"]
    think, content = fake.tokens("<t>no</t>"), fake.tokens("yes")
    fake.plan(event([*think, marker, *content], finish="stop"), usage(), "[DONE]")
    span = ReasoningSpan(start_text="<t>", end_text="</t>")
    outline = Outline(reasoning=span, markers=("<|im_start|>",), hides_stops=True)

    async def test() -> None:
        async with fake.started() as runtime:
            outputs = await answer(runtime, ask(outline=outline, stop=["o"]))
            assert "".join(output.text for output in outputs) == "<t>no</t>yes", "stop strings count after reasoning"
            assert [mark for output in outputs for mark in output.marks] == [(9, "<|im_start|>")]
            assert outputs[-1].usage.reasoning_tokens == len(think)

    run(test())


@pytest.mark.parametrize(
    ("grammar", "sent"),
    [
        (GrammarText(kind="json_schema", text='{"type": "object"}'), {"json": {"type": "object"}}),
        (GrammarText(kind="json_object"), {"json_object": True}),
        (GrammarText(kind="choice", text='["a", "b"]'), {"choice": ["a", "b"]}),
        (GrammarText(kind="regex", text="[ab]+"), {"regex": "[ab]+"}),
        (GrammarText(kind="gbnf", text='root ::= "x"'), {"grammar": 'root ::= "x"'}),
        (GrammarText(kind="lark", text="%llguidance {}"), None),
    ],
)
def test_constraints_are_passed_on_or_refused(fake: Fake, grammar: GrammarText, sent: dict[str, Any] | None):
    async def test() -> None:
        async with fake.started() as runtime:
            if sent is None:
                with pytest.raises(UnsupportedParameter, match="lark"):
                    await answer(runtime, ask(outline=Outline(grammar=grammar)))
            else:
                await answer(runtime, ask(outline=Outline(grammar=grammar)))
                assert fake.body()["structured_outputs"] == sent

    run(test())


REFUSALS: list[tuple[dict[str, Any], type[StokerError], str]] = [
    ({"mirostat": 2}, UnsupportedParameter, "mirostat"),
    ({"xtc_probability": 0.5}, UnsupportedParameter, "xtc_probability"),
    ({"min_keep": 2}, UnsupportedParameter, "min_keep"),
    ({"samplers": ["temperature", "top_k"]}, UnsupportedParameter, "samplers"),
    ({"samplers": ["top_k", "infill"]}, UnsupportedParameter, "infill"),
    ({"samplers": ["top_k", "adaptive_p"], "adaptive_target": 0.5}, UnsupportedParameter, "samplers"),
    ({"penalty_last_n": 8, "repetition_penalty": 1.5}, UnsupportedParameter, "penalty_last_n"),
    ({"echo": True, "logprobs": 0}, UnsupportedParameter, "echo"),
    ({"adapters": [AdapterChoice(name="sql", scale=1.0)]}, AdapterNotFound, "lora"),
    ({"logit_bias": {100_000: 1.0}}, InvalidInput, "logit_bias"),
    (
        {"outline": Outline(grammar=GrammarText(kind="json_object"), reasoning=ReasoningSpan(end_text="x"))},
        UnsupportedParameter,
        "response_format",
    ),
    ({"media": [Media("image", "<a>", b"x")]}, UnsupportedParameter, "messages"),
    ({"outline": Outline(reasoning=ReasoningSpan(end_text="x", budget=3))}, UnsupportedParameter, "reasoning_budget"),
]


def test_stages_that_are_not_named_are_off(fake: Fake):
    async def test() -> None:
        async with fake.started() as runtime:
            given: dict[str, Any] = {
                "top_k": 5,
                "top_p": 0.5,
                "repetition_penalty": 1.5,
                "xtc_probability": 0.5,
                "min_keep": 1,
            }
            await answer(runtime, ask(**given, temperature=0.5, samplers=["min_p", "top_k"]))
            without_xtc: dict[str, Any] = {**given, "xtc_probability": 0}
            await answer(runtime, ask(**without_xtc, temperature=0.5, samplers=["xtc", "top_p"]))

    run(test())
    first, second = (asked["body"] for asked in fake.asked("/v1/completions"))
    names = ("top_k", "top_p", "repetition_penalty", "temperature")
    assert [first[name] for name in names] == [5, 1, 1, 1]
    assert [second[name] for name in names] == [0, 0.5, 1, 1]


def test_what_vllm_cannot_do_is_refused_before_it_is_asked(fake: Fake):
    async def test() -> None:
        async with fake.started() as runtime:
            for sent, error, parameter in REFUSALS:
                with pytest.raises(error) as caught:
                    await answer(runtime, ask(**sent))
                assert str(caught.value.fields["parameter"]).startswith(parameter), sent
            with pytest.raises(ContextLengthExceeded):
                await answer(runtime, ask("x" * 200))
            with pytest.raises(InvalidInput, match=r"cannot embed.*--pooling"):
                await runtime.ask(Embed(inputs=[]))
            with pytest.raises(UnsupportedParameter, match="ListSlots"):
                await runtime.ask(ListSlots())
            assert fake.asked("/v1/completions") == []
            await answer(runtime, ask(penalty_last_n=8))  # without a penalty there is no window

    run(test())


def test_a_prompt_alone_gives_its_echo_and_no_token(fake: Fake):
    async def test() -> None:
        async with fake.started() as runtime:
            outputs = await answer(runtime, ask("ab", max_tokens=0, echo=True))
            assert [output.text for output in outputs] == [""]
            assert (outputs[0].finish_reason, outputs[0].usage.completion_tokens) == ("length", 0)
            assert b"".join(token.token for token in outputs[0].prompt or []) == b"ab"

    run(test())
    assert fake.body()["max_tokens"] == 1


def test_texts_are_tokenized_here(fake: Fake):
    async def test() -> None:
        async with fake.started() as runtime:
            tokens = (await runtime.ask(Tokenize("hi"))).token_ids
            assert tokens[-2:] == fake.tokens("hi")
            assert (await runtime.ask(Detokenize(tokens[-2:]))).text == "hi"

    run(test())


@pytest.mark.parametrize(
    ("status", "error"), [(400, InvalidInput), (429, Overloaded), (500, BackendError), (501, UnsupportedParameter)]
)
def test_its_errors_have_types(fake: Fake, status: int, error: type[StokerError]):
    async def test() -> None:
        async with fake.started() as runtime:
            fake.plan(refusal=[status, "not so"])
            with pytest.raises(error, match="vLLM: not so"):
                await answer(runtime, ask())
            fake.plan({"error": {"message": "later", "type": "x", "code": status}}, "[DONE]")
            with pytest.raises(error, match="vLLM: later"):
                await answer(runtime, ask())
            assert runtime.health().is_ready

    run(test())


@pytest.mark.parametrize("what", ["nonsense", {"choices": [{"finish_reason": "mystery", "token_ids": [1]}]}])
def test_what_cannot_be_understood_is_an_error(fake: Fake, what: object):
    fake.plan(what, usage(), "[DONE]")

    async def test() -> None:
        async with fake.started() as runtime:
            with pytest.raises(BackendError):
                await answer(runtime, ask())

    run(test())


def test_a_dead_server_is_replaced_and_its_worker_is_gone(fake: Fake):
    async def test() -> None:
        async with fake.started() as runtime:
            fake.plan(event(fake.tokens("a")), "die")
            first, stream = fake.worker, runtime.generate(ask())
            assert isinstance(await anext(stream), Accepted)
            assert isinstance(await anext(stream), Output)
            with pytest.raises(EngineCrashed, match="vllm"):
                await anext(stream)
            await until(lambda: runtime.health().is_ready and runtime.health().num_restarts == 1)
            assert not psutil.pid_exists(first)
            fake.answers("again")
            assert "".join(output.text for output in await answer(runtime, ask())) == "again"

    run(test())


def test_a_request_that_had_not_begun_is_given_to_the_next_server(fake: Fake):
    async def test() -> None:
        async with fake.started() as runtime:
            fake.plan("die")
            asking = asyncio.create_task(answer(runtime, ask()))
            await until(lambda: bool(fake.asked("/v1/completions")))
            fake.answers("second")
            assert "".join(output.text for output in await asking) == "second"

    run(test())
    assert len(fake.asked()) == 2


def test_fields_that_vllm_must_know_are_json(fake: Fake):
    async def test() -> None:
        async with fake.started() as runtime:
            await answer(runtime, ask(allowed_token_ids=[1, 2], min_tokens=2, seed=7, cache_prompt=False))

    run(test())
    body = fake.body()
    assert (body["allowed_token_ids"], body["min_tokens"], body["seed"]) == ([1, 2], 2, 7)
    assert len(body["cache_salt"]) == 32
