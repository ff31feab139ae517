"""What llama-server is asked, and what becomes of its answers."""

from __future__ import annotations

import asyncio
from dataclasses import fields, replace
from math import inf

import pytest

from stoker.core.outline import Outline
from stoker.core.params import BUILT_IN, SamplingParams
from stoker.engine.protocol import Accepted, Output, Progress, Submit, Timing
from stoker.engine.question_messages import (
    AdapterChoice,
    ChangeAdapters,
    Detokenize,
    Detokenized,
    Embed,
    EraseSlots,
    ListSlots,
    Question,
    RestoreSlot,
    SaveSlot,
    Tokenize,
)
from stoker.engine.stats import EngineStats
from stoker.errors import (
    AdapterNotFound,
    BackendError,
    ContextLengthExceeded,
    InvalidInput,
    ModelNotLoaded,
    Overloaded,
    StokerError,
    Timeout,
    UnsupportedParameter,
)
from stoker.runtime.external import supervisor
from stoker.runtime.llama_server.completion import (
    LOOKS_BACK,
    OTHER_NAME,
    REFUSED,
    SAME_NAME,
    TRANSLATED,
    completion_body,
)
from stoker.text.messages import Message
from tests.unit.runtime.llama_server.fake import ANSWER, Fake, answer, ask, end, event, text
from tests.waiting import run, until


def test_every_sampling_parameter_is_sent_or_refused():
    known = [*SAME_NAME, *OTHER_NAME, *LOOKS_BACK, *TRANSLATED, *REFUSED]
    assert sorted(known) == sorted(field.name for field in fields(SamplingParams))


def test_what_is_off_here_is_off_in_llama_server() -> None:
    """llama-server's own default of `min_p` is 0.05."""
    usual = SamplingParams(seed=1).filled_from(BUILT_IN)
    assert completion_body([1], usual, 5, cache_prompt=True)["min_p"] == 0.0
    asked = completion_body([1], replace(usual, min_p=0.2), 5, cache_prompt=True)
    assert asked["min_p"] == 0.2


def test_every_part_of_a_request_has_been_thought_of():
    """Whoever adds one says here what llama-server does with it, and in `docs/llama-server.md` if it cannot."""
    sent = {"prompt", "sampling", "cache_prompt", "text_bias", "parse_special", "outline", "media", "reports_progress"}
    ours = {"request_id", "priority", "client_key", "timeout_s", "echo", "adapters"}
    not_needed = {"group", "session", "traces", "wants_blocks", "num_cached"}
    assert {*sent, *ours, *not_needed} == set(Submit.__struct_fields__)


def test_the_progress_of_a_prompt_is_reported_to_who_asks(fake: Fake):
    progress = {"total": 300, "cache": 20, "processed": 150, "time_ms": 250}
    fake.plan(answer=[event(prompt_progress=progress, tokens=[0]), *ANSWER])

    async def test() -> None:
        async with fake.started() as runtime:
            told, *rest = await answer(runtime, ask(reports_progress=True))
            assert told.progress == Progress(300, 20, 150, 0.25)
            assert (told.text, told.token_ids, told.finish_reason) == ("", [], None)
            assert "".join(output.text for output in rest) == "Hello"
            assert [output.progress for output in await answer(runtime, ask())] == [None, None, None]

    run(test())


def test_an_answer_with_everything_that_was_asked(fake: Fake):
    probabilities = [{"id": 72, "token": "H", "bytes": [72], "logprob": -0.5, "top_logprobs": []}]
    fake.plan(
        answer=[
            event(prompt_progress={"total": 3, "cache": 2, "processed": 3}, tokens=[0]),
            event("H", tokens=[72], tokens_predicted=1, completion_probabilities=probabilities),
            event("", tokens=[2], tokens_predicted=2, completion_probabilities=probabilities),
            end(timings={"cache_n": 2, "prompt_ms": 500.0, "predicted_ms": 250.0}, tokens_predicted=2),
        ]
    )
    submit = ask(
        temperature=0.5,
        top_k=-1,
        repetition_penalty=1.5,
        penalty_last_n=-1,
        seed=2**40 + 5,
        max_tokens=9,
        stop="END",
        logprobs=0,
        logit_bias={7: -inf, 8: 1.5},
        banned_token_ids=[9],
        text_bias={"ab": 2.0},
        cache_prompt=False,
    )

    async def test() -> None:
        async with fake.started() as runtime:
            first, last = await answer(runtime, submit)
            assert (first.text, first.token_ids, first.finish_reason) == ("H", [72], None)
            assert (last.text, last.token_ids, last.finish_reason, last.stop_match) == ("", [2], "stop", None)
            assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.cached_tokens) == (3, 2, 2)
            assert (first.timing, last.timing) == (None, Timing(0.5, 0.25))
            assert first.logprobs is not None
            assert first.logprobs[0].chosen.token == b"H"
            assert first.logprobs[0].top == ()

    run(test())
    (asked,) = fake.asked("/completion")
    (started,) = fake.asked()
    assert asked["key"] == f"Bearer {started['key']}"
    body = asked["body"]
    expected = {
        "prompt": [256, 104, 105],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 0,
        "repeat_penalty": 1.5,
        "repeat_last_n": 12,
        "dry_penalty_last_n": 12,
        "seed": (2**40 + 5) % (2**32 - 1),
        "n_predict": 9,
        "n_probs": 1,
        "stop": ["END"],
        "cache_prompt": False,
        "stream": True,
    }
    assert {name: body[name] for name in expected} == expected
    biases = dict(body["logit_bias"])
    assert biases == {97: 2.0, 98: 2.0, 7: False, 8: 1.5, 9: False}


def test_filling_in_is_a_stage_among_the_usual_ones(fake: Fake):
    fake.plan(answer=[end(tokens_predicted=1)] * 3)

    async def test() -> None:
        async with fake.started() as runtime:
            await answer(runtime, ask(infill=True))
            await answer(runtime, ask(infill=False))
            await answer(runtime, ask(infill=True, samplers=["temperature", "top_k"]))

    run(test())
    with_it, without, of_its_own = (asked["body"] for asked in fake.asked("/completion"))
    assert with_it["samplers"][-2:] == ["infill", "temperature"]
    assert "samplers" not in without
    assert of_its_own["samplers"] == ["temperature", "top_k"]


def test_a_character_that_is_split_between_chunks_survives(fake: Fake):
    raw = event("é🙂") + ": ping\n\n" + event("ß\n")[:-2] + "\r\n\r\n" + end(tokens_predicted=3)

    async def test() -> None:
        async with fake.started() as runtime:
            for size in (1, 2, 3, 7, 1000):
                fake.plan(answer=[raw[at : at + size] for at in range(0, len(raw), size)])
                assert await text(runtime, ask()) == "é🙂ß\n"
            fake.plan(answer=[event("x"), end().rstrip()])
            assert await text(runtime, ask()) == "x", "the end counts without an empty line behind it"

    run(test())


@pytest.mark.parametrize("cut", ["close", ""])
def test_a_stream_without_an_end_is_an_error(fake: Fake, cut: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(supervisor, "DEATH_S", 0.1)
    fake.plan(answer=[event("x"), *([cut] if cut else [])])

    async def test() -> None:
        async with fake.started() as runtime:
            stream = runtime.generate(ask())
            assert isinstance(await anext(stream), Accepted)
            assert isinstance(await anext(stream), Output)
            with pytest.raises(BackendError, match="ended in the middle"):
                await anext(stream)
            assert runtime.health().is_ready

    run(test())


def test_an_error_in_the_stream_ends_it(fake: Fake):
    problems = [
        ('data: {"error": {"code": 500, "message": "KV is full", "type": "server_error"}}\n\n', BackendError),
        ('error: {"code": 400, "message": "no", "type": "invalid_request_error"}\n\n', InvalidInput),
        ("data: nonsense\n\n", BackendError),
        (end("none"), BackendError),
    ]

    async def test() -> None:
        async with fake.started() as runtime:
            for raw, kind in problems:
                fake.plan(answer=[event("x"), raw])
                with pytest.raises(StokerError) as caught:
                    await answer(runtime, ask())
                assert type(caught.value) is kind, raw

    run(test())


def test_a_refusal_becomes_a_typed_error(fake: Fake):
    refusals = [
        (400, {"message": "bad", "type": "invalid_request_error", "code": 400}, InvalidInput),
        (400, {"type": "exceed_context_size_error", "n_prompt_tokens": 9, "n_ctx": 8}, ContextLengthExceeded),
        (501, {"message": "no", "type": "not_supported_error", "code": 501}, UnsupportedParameter),
        (503, {"message": "Loading model", "type": "unavailable_error", "code": 503}, ModelNotLoaded),
        (429, {"message": "too much"}, Overloaded),
        (500, {"message": "oops"}, BackendError),
        (401, "what?", BackendError),
    ]

    async def test() -> None:
        async with fake.started() as runtime:
            for status, error, kind in refusals:
                fake.plan(refusal=(status, error))
                with pytest.raises(StokerError) as caught:
                    await answer(runtime, ask())
                assert type(caught.value) is kind, error

    run(test())


def test_what_cannot_be_done_is_refused_before_anything_is_sent(fake: Fake):
    refused = [
        (ask(min_tokens=3), UnsupportedParameter),
        (ask(stop_token_ids=[1]), UnsupportedParameter),
        (ask(allowed_token_ids=[1]), UnsupportedParameter),
        (ask(dry_sequence_breakers=(), dry_multiplier=1.0), UnsupportedParameter),
        (ask(echo=True, logprobs=1), UnsupportedParameter),
        (ask([5, 263]), InvalidInput),
        (ask([]), InvalidInput),
        (ask("\ud800"), InvalidInput),
        (ask("x" * 127), ContextLengthExceeded),
        (ask(adapters=[AdapterChoice(name="sql")]), AdapterNotFound),
    ]

    async def test() -> None:
        async with fake.started() as runtime:
            for submit, kind in refused:
                with pytest.raises(StokerError) as caught:
                    await anext(runtime.generate(submit))
                assert type(caught.value) is kind, submit
            with pytest.raises(InvalidInput, match="outside the vocabulary"):
                await runtime.ask(Detokenize([263]))
            with pytest.raises(InvalidInput, match="was not started for embeddings"):
                await runtime.ask(Embed(["x"]))
            assert (await runtime.ask(ChangeAdapters())).adapters == []
            with pytest.raises(UnsupportedParameter):
                await runtime.ask(ChangeAdapters(scales={0: 1.0}))
            assert runtime.health().heartbeat is not None

    run(test())
    assert fake.asked("/completion") == []


def test_texts_and_tokens(fake: Fake):
    async def test() -> None:
        async with fake.started() as runtime:
            tokenized = await runtime.ask(Tokenize("é"))
            assert (tokenized.token_ids, tokenized.pieces) == ([256, 0xC3, 0xA9], [b"<|bos|>", b"\xc3", b"\xa9"])
            assert (await runtime.ask(Tokenize("a", wants_bos=False))).token_ids == [97]
            assert (await runtime.ask(Tokenize("<|bos|>a"))).token_ids == [256, 97], "its own is not given a second one"
            assert (await runtime.ask(Detokenize([104, 105]))).text == "hi"
            assert runtime.render_chat([Message(role="user", content="hi")]).startswith("<|im_start|>user\nhi")
            (first, *_) = await answer(runtime, ask(["a", 98], echo=True))
            assert [token.token for token in first.prompt or ()] == [b"<|bos|>", b"a", b"b"]
            await answer(runtime, ask("<|bos|>a"))
            (first, *_) = await answer(runtime, ask("a", echo=True))
            assert [token.token for token in first.prompt or ()] == [b"", b"a"]

    run(test())
    assert fake.asked("/completion")[1]["body"]["prompt"] == [256, 97]


def test_an_answer_of_no_tokens_only_computes_the_prompt(fake: Fake):
    fake.plan(answer=[event("never said", tokens=[1], tokens_predicted=1), end("limit", tokens_predicted=1)])

    async def test() -> None:
        async with fake.started() as runtime:
            (output,) = await answer(runtime, ask(max_tokens=0))
            assert (output.text, output.token_ids, output.finish_reason) == ("", [], "length")
            assert output.usage.completion_tokens == 0

    run(test())


def test_a_stop_string_is_named(fake: Fake):
    fake.plan(answer=[event("a"), end("word", stopping_word="END")])

    async def test() -> None:
        async with fake.started() as runtime:
            outputs = await answer(runtime, ask(stop=["END"]))
            assert (outputs[-1].finish_reason, outputs[-1].stop_match) == ("stop", "END")
            outputs = await answer(runtime, ask(outline=Outline(ends=("END",))))
            assert (outputs[-1].finish_reason, outputs[-1].stop_match) == ("stop", None), "an end of the model's own"
            assert fake.asked("/completion")[-1]["body"]["stop"] == ["END"]

    run(test())


def test_slots_are_shown_and_erased(fake: Fake):
    running = {"id": 1, "is_processing": True, "id_task": 7, "n_prompt_tokens": 30, "next_token": [{"n_decoded": 4}]}
    fake.plan(slots=[{"id": 0, "n_prompt_tokens": 12}, running])

    async def test() -> None:
        async with fake.started() as runtime:
            idle, busy = (await runtime.ask(ListSlots())).slots
            assert (idle.num_tokens, idle.request_id) == (12, None)
            assert (busy.num_tokens, busy.request_id, busy.num_prompt, busy.num_completion) == (30, "task-7", 26, 4)
            assert (await runtime.ask(EraseSlots())).num_tokens == 5
            assert (await runtime.ask(EraseSlots(0))).num_tokens == 5
            for slot in (1, 2):
                with pytest.raises(InvalidInput):
                    await runtime.ask(EraseSlots(slot))

    run(test())
    assert len(fake.asked("/slots/0?action=erase")) == 2


def test_slots_are_saved_and_restored_in_the_users_folder(fake: Fake):
    fake.plan(slots=[{"id": 0}, {"id": 1, "is_processing": True, "id_task": 7}])
    folder = fake.folder / "slots"

    async def test() -> None:
        async with fake.started(slot_save_path=str(folder)) as runtime:
            assert folder.is_dir()
            saved = await runtime.ask(SaveSlot(0, "a.bin"))
            assert (saved.num_tokens, saved.num_bytes) == (12, 3456)
            restored = await runtime.ask(RestoreSlot(0, "a.bin"))
            assert (restored.num_tokens, restored.num_bytes) == (12, 3456)
            for slot in (1, 2):
                with pytest.raises(InvalidInput, match=f"slot {slot}"):
                    await runtime.ask(SaveSlot(slot, "a.bin"))
            fake.plan(slots=[{"id": 0}], held=0)
            with pytest.raises(InvalidInput, match="nothing in slot 0"):
                await runtime.ask(SaveSlot(0, "a.bin"))

    run(test())
    (command,) = (entry["command"] for entry in fake.asked())
    assert command[command.index("--slot-save-path") + 1] == str(folder)
    assert fake.asked("/slots/0?action=save")[0]["body"] == {"filename": "a.bin"}


class Riddle(Question[Detokenized], frozen=True, tag=True):
    """A question that only an engine could answer."""


def test_question_that_llama_server_cannot_answer_is_refused(fake: Fake):
    async def test() -> None:
        async with fake.started() as runtime:
            with pytest.raises(UnsupportedParameter, match="no answer to Riddle: serve the model without --runtime"):
                await runtime.ask(Riddle())

    run(test())


def test_without_a_folder_slots_are_not_saved(fake: Fake):
    async def test() -> None:
        async with fake.started() as runtime:
            for kind in (SaveSlot, RestoreSlot):
                with pytest.raises(UnsupportedParameter, match="--slot-save-path FOLDER"):
                    await runtime.ask(kind(0, "a.bin"))

    run(test())
    assert not fake.asked("/slots/0?action=save")


def test_requests_wait_in_line_by_priority_and_leave_it(fake: Fake):
    fake.plan(answer=[event("x", tokens_predicted=1), "hang"])

    async def test() -> None:
        async with fake.started(parallel=1, max_queue=3) as runtime:
            running = runtime.generate(ask("a", "running"))
            await anext(running)
            await anext(running)
            waiting = [runtime.generate(ask("b", f"w{n}", priority=n, timeout_s=30)) for n in range(3)]
            for stream in waiting:
                await anext(stream)
            with pytest.raises(Overloaded):
                await anext(runtime.generate(ask("c", "too-much")))
            with pytest.raises(InvalidInput, match="already in use"):
                await anext(runtime.generate(ask("c", "w0")))
            tasks = [asyncio.ensure_future(anext(stream)) for stream in waiting]
            await until(lambda: (beat := runtime.health().heartbeat) is not None and beat.num_waiting == 3)
            beat = runtime.health().heartbeat
            assert beat is not None
            assert (beat.num_running, beat.kv_used) == (1, 3)
            fake.plan()
            await running.aclose()
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            assert done == {tasks[2]}, "the highest priority comes first"
            for stream, task in zip(waiting[::-1], tasks[::-1], strict=True):
                assert isinstance(await task, Output)
                await stream.aclose()
            assert runtime.health().heartbeat == EngineStats(0, 0, 0, 0, 0, 128, 0.0)

    run(test())


def test_a_deadline_ends_a_request_wherever_it_is(fake: Fake):
    fake.plan(answer=["hang"])

    async def test() -> None:
        async with fake.started(parallel=1) as runtime:
            tasks = [
                asyncio.ensure_future(answer(runtime, ask("a", name, timeout_s=0.2))) for name in ("first", "second")
            ]
            for task in tasks:
                with pytest.raises(Timeout):
                    await task

    run(test())
