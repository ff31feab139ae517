"""Requests whose answers follow a grammar, or whose reasoning has a budget."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import Any, cast

import jsonschema
import pytest

from stoker.backends.scripted import EOS, reply_with
from stoker.core.outline import GrammarText, Outline, ReasoningSpan
from stoker.core.params import SamplingParams
from stoker.engine import outlines
from stoker.engine.engine import Engine
from stoker.engine.protocol import Failed, Output, Submit
from stoker.engine.question_messages import EndReasoning, ReasoningEnded
from stoker.errors import GrammarInvalid, GrammarTooComplex, InvalidInput, Overloaded, UnsupportedSchema
from stoker.grammars import compiler
from stoker.grammars.sources import Source, source_of
from tests.unit.engine.test_engine import add, last, make_engine, outputs, run, text
from tests.waiting import BOUND_S

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "sizes": {"type": "array", "items": {"enum": [1, 23]}}},
    "required": ["name", "sizes"],
    "additionalProperties": False,
}
THINK = ReasoningSpan(start_text="<think>", end_text="</think>")


def grammar(kind: Any, text: str = "") -> Outline:
    return Outline(grammar=GrammarText(kind=kind, text=text))


def ask(engine: Engine, outline: Outline, request_id: str = "r", prompt: str = "Q:", **params: Any) -> None:
    engine.add(engine.admit(Submit(request_id, prompt, SamplingParams(**params), outline=outline)))


def answer(engine: Engine, outline: Outline, **params: Any) -> list[Any]:
    ask(engine, outline, **params)
    return run(engine)["r"]


@pytest.mark.parametrize("temperature", [0, 1, 5])
@pytest.mark.parametrize("seed", range(4))
def test_any_model_writes_json_of_the_schema(temperature: float, seed: int) -> None:
    engine = make_engine()  # it babbles
    events = answer(engine, grammar("json_schema", json.dumps(SCHEMA)), temperature=temperature, seed=seed)
    if last(events).finish_reason == "stop":
        jsonschema.validate(json.loads(text(events)), SCHEMA)
    else:
        assert last(events).finish_reason == "length"


def test_the_model_s_own_words_stay_where_they_are_allowed() -> None:
    said = '{"name": "ab", "sizes": [23, 1]}'
    events = answer(make_engine(reply_with(said)), grammar("json_schema", json.dumps(SCHEMA)))
    assert text(events) == said
    assert last(events).finish_reason == "stop"


def test_an_answer_ends_when_nothing_can_follow() -> None:
    events = answer(make_engine(reply_with("yes and more")), grammar("choice", '["yes", "no"]'))
    assert text(events) == "yes"
    assert last(events).finish_reason == "stop"
    assert EOS not in [token_id for output in outputs(events) for token_id in output.token_ids]


def test_neighbors_do_not_notice() -> None:
    alone = make_engine(reply_with("as it is"))
    add(alone, "free")
    engine = make_engine(reply_with("as it is"))
    ask(engine, grammar("regex", "[0-9]{3}"), "bound")
    add(engine, "free")
    events = run(engine)
    assert text(events["free"]) == text(run(alone)["free"]) == "as it is"
    assert text(events["bound"]).isdigit()
    assert len(text(events["bound"])) == 3


def test_sampling_parameters_hold_among_allowed_tokens() -> None:
    bias = {ord("7"): 50.0}
    events = answer(make_engine(), grammar("regex", "[0-9]{4}"), temperature=1, top_k=1, logit_bias=bias, logprobs=1)
    assert text(events) == "7777"
    assert all(position.chosen.logprob < 0 for output in outputs(events) for position in output.logprobs or ())


def test_a_bias_may_leave_no_token() -> None:
    bias = {ord(digit): float("-inf") for digit in "0123456789"}
    (event,) = answer(make_engine(), grammar("regex", "[0-9]"), temperature=0, logit_bias=bias)
    assert isinstance(event, Failed)
    assert event.code == "grammar_failed"


@pytest.mark.parametrize(
    ("outline", "params", "error"),
    [
        (grammar("json_schema", '{"contains": {}}'), {}, UnsupportedSchema),
        (grammar("regex", "(?=a)b"), {}, GrammarInvalid),
        (grammar("gbnf", "root ::= missing"), {}, GrammarInvalid),
        (grammar("json_object"), {"ignore_eos": True}, InvalidInput),
    ],
)
def test_what_cannot_be_enforced_is_refused(outline: Outline, params: Any, error: type[Exception]) -> None:
    engine = make_engine()
    with pytest.raises(error):
        ask(engine, outline, **params)
    add(engine, "next", max_tokens=1)
    assert run(engine)["next"]


def test_a_grammar_behind_a_slow_one_may_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()

    def slowly(*args: Any) -> Source:
        assert goes_on.wait(BOUND_S)
        return source_of(*args)

    monkeypatch.setattr(compiler, "source_of", slowly)
    monkeypatch.setattr(outlines, "_COMPILE_S", 0.05)
    engine = make_engine()
    with pytest.raises(GrammarTooComplex):
        ask(engine, grammar("json_object"))
    with pytest.raises(Overloaded):
        ask(engine, grammar("regex", "[0-9]"))
    goes_on.set()
    monkeypatch.undo()
    assert last(answer(engine, grammar("regex", "[0-9]"))).finish_reason == "stop"


@pytest.mark.parametrize("begun", ['{"na', '{"name": "é', '{"name": "ab", "sizes": [23', '{"name": "ab", "sizes": []}'])
def test_an_answer_that_the_prompt_begins_is_of_the_schema_as_a_whole(begun: str) -> None:
    outline = replace(grammar("json_schema", json.dumps(SCHEMA)), begun=begun)
    for temperature in (0, 5):
        events = answer(make_engine(), outline, temperature=temperature, seed=3, max_tokens=400)
        assert last(events).finish_reason == "stop"
        jsonschema.validate(json.loads(begun + text(events)), SCHEMA)


@pytest.mark.parametrize("begun", ["Here: {", '{"name": "abcdef', '{"name": "ab"}', '{"name": "ab", "sizes": []} '])
def test_a_beginning_that_no_answer_can_have_is_refused(begun: str) -> None:
    engine = make_engine()
    for _ in range(2):  # the grammar is known the second time
        with pytest.raises(InvalidInput, match="not the beginning of an answer"):
            ask(engine, replace(grammar("json_schema", json.dumps(SCHEMA)), begun=begun))


def test_reasoning_is_counted_and_the_grammar_begins_after_it() -> None:
    said = "<think>so 12</think>34"
    outline = Outline(grammar=GrammarText(kind="regex", text="[0-9]{2}"), reasoning=THINK)
    open_span = ReasoningSpan(start_text="<think>", end_text="</think>", starts_open=True)
    events = answer(make_engine(reply_with("so 12</think>34")), Outline(grammar=outline.grammar, reasoning=open_span))
    assert text(events) == "so 12</think>34"
    assert last(events).usage.reasoning_tokens == len("so 12</think>")
    free = answer(make_engine(reply_with(said)), Outline(reasoning=THINK))
    assert text(free) == said
    assert last(free).usage.reasoning_tokens == len("<think>so 12</think>")


@pytest.mark.parametrize("said", ["<think>so 12</think>34", "<think></think>34", "34"])
def test_reasoning_whose_marker_is_text_may_stand_before_the_grammar(said: str) -> None:
    outline = Outline(grammar=GrammarText(kind="regex", text="[0-9]{2}"), reasoning=THINK)
    events = answer(make_engine(reply_with(said)), outline, temperature=0)
    assert text(events) == said
    assert last(events).finish_reason == "stop"


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ("so 12</think>\n\n34", "so 12</think>\n\n34"),
        ("so 12</think>\n34", "so 12</think>\n34"),
        ("so 12</think>\n\n\n34", "so 12</think>\n\n"),
        ("so 12</think>3\n4", "so 12</think>3"),
    ],
)
@pytest.mark.parametrize("budget", [None, 500])
def test_line_breaks_may_stand_between_reasoning_and_the_grammar(said: str, written: str, budget: int | None) -> None:
    span = replace(THINK, starts_open=True, budget=budget)
    outline = Outline(grammar=GrammarText(kind="regex", text="[0-9]{2}"), reasoning=span)
    events = answer(make_engine(reply_with(said)), outline, temperature=0)
    assert text(events).startswith(written)
    assert len(text(events).partition("</think>")[2].strip("\n")) == len("34")
    assert last(events).finish_reason == "stop"


def test_content_that_begins_like_the_marker_of_reasoning_follows_the_grammar() -> None:
    outline = Outline(grammar=GrammarText(kind="regex", text="<th[0-9]{2}"), reasoning=THINK)
    events = answer(make_engine(reply_with("<th34 and more")), outline, temperature=0)
    assert (text(events), last(events).usage.reasoning_tokens) == ("<th34", 0)


@pytest.mark.parametrize("marker", ["<|im_start|>", "<call>"])
def test_the_marker_of_a_call_ends_open_reasoning_and_belongs_to_the_grammar(marker: str) -> None:
    span = ReasoningSpan(start_text="<think>", end_text="</think>", starts_open=True, implicit_ends=(marker,))
    body = {"<call>": '"<call>"', "<|im_start|>": "<|im_start|>"}[marker]
    outline = Outline(grammar=GrammarText(kind="lark", text=f"start: {body} /[0-9]{{2}}/"), reasoning=span)
    events = answer(make_engine(reply_with(f"so far{marker}3 more")), outline, temperature=0)
    assert text(events).startswith("so far" if marker == "<|im_start|>" else "so far<call>3")
    assert text(events)[-2:-1] == "3"
    assert last(events).usage.reasoning_tokens >= len("so far")
    assert last(events).finish_reason == "stop"


def test_content_alone_is_no_reasoning() -> None:
    events = answer(make_engine(reply_with("<thing> of content")), Outline(reasoning=THINK))
    assert last(events).usage.reasoning_tokens == 0


@pytest.mark.parametrize("budget", [0, 1, 4])
def test_a_spent_budget_ends_the_reasoning(budget: int) -> None:
    span = ReasoningSpan(
        start_text="<think>", end_text="</think>", starts_open=True, budget=budget, closing_text=" Enough."
    )
    said = "a very long thought"
    events = answer(make_engine(reply_with(said)), Outline(reasoning=span), max_tokens=30)
    assert text(events).startswith(f"{said[:budget]} Enough.</think>")


def test_a_client_ends_the_reasoning() -> None:
    """Only of the reply that is named, and once."""
    span = ReasoningSpan(start_text="<think>", end_text="</think>", closing_text=" Enough.", can_be_ended=True)
    engine = make_engine(reply_with("<think>a very long thought"))
    for request_id in ("reply-0", "other-0"):
        ask(engine, Outline(reasoning=span), request_id, max_tokens=40)
    written = {"reply-0": "", "other-0": ""}
    ended: list[int] = []
    while engine.has_work:
        for event in engine.step():
            assert isinstance(event, Output)
            written[event.request_id] += event.text
        if written["reply-0"].endswith("<think>a very") or ended == [1]:
            ended.append(cast("ReasoningEnded", engine.answer(EndReasoning("reply"))).num_choices)
    assert ended == [1, 0]
    assert written["reply-0"].startswith("<think>a very Enough.</think>")
    assert written["other-0"].startswith("<think>a very long thought")


def test_reasoning_that_is_not_written_is_not_ended() -> None:
    engine = make_engine(reply_with("34"))
    ask(engine, Outline(reasoning=ReasoningSpan(start_text="<think>", end_text="</think>", can_be_ended=True)), "r-0")
    assert cast("ReasoningEnded", engine.answer(EndReasoning("r"))).num_choices == 0
    assert text(run(engine)["r-0"]) == "34"


def test_a_budget_does_not_cut_a_character() -> None:
    span = ReasoningSpan(start_text="<think>", end_text="</think>", starts_open=True, budget=2)
    events = answer(make_engine(reply_with("aé thought")), Outline(reasoning=span), max_tokens=14)
    assert text(events).startswith("aé</think>")


def test_stop_strings_do_not_count_in_reasoning() -> None:
    said = "<think>stop here</think>go on, stop here"
    outline = Outline(reasoning=THINK, hides_stops=True)
    events = answer(make_engine(reply_with(said)), outline, stop=("stop",))
    assert text(events) == "<think>stop here</think>go on, "
    events = answer(make_engine(reply_with(said)), Outline(), stop=("stop",))
    assert text(events) == "<think>"


def test_markers_are_reported_at_their_places() -> None:
    special = "<|im_start|>"
    events = answer(make_engine(reply_with(f"ab{special}cd{special}")), Outline(markers=(special,)))
    whole, marks = "", list[tuple[int, str]]()
    for output in outputs(events):
        marks += [(len(whole) + offset, spelling) for offset, spelling in output.marks]
        whole += output.text
    assert whole == "abcd"
    assert marks == [(2, special), (4, special)]


def test_a_paused_request_goes_on_with_its_grammar() -> None:
    said = '{"name": "ab", "sizes": [23, 1]}'
    engine = make_engine(reply_with(said))
    ask(engine, grammar("json_schema", json.dumps(SCHEMA)))
    events = [event for _ in range(6) for event in engine.step()]
    engine.pause("r")
    engine.resume("r")
    events += run(engine)["r"]
    assert "".join(event.text for event in events if isinstance(event, Output)) == said


def test_what_of_a_schema_is_not_enforced_is_known_before_the_answer() -> None:
    schema = json.dumps({"type": "object", "properties": {"a": {"contains": {"type": "integer"}}}})
    for is_strict in (False, True):
        outline = Outline(grammar=GrammarText(kind="json_schema", text=schema, is_strict=is_strict))
        if is_strict:
            with pytest.raises(UnsupportedSchema):
                ask(make_engine(), outline)
        else:
            (relaxed,) = make_engine().admit(Submit("r", "Q:", SamplingParams(), outline=outline)).relaxed
            assert relaxed.startswith("`contains` at `/properties/a`")
