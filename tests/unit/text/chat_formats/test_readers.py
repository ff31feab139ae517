"""Readers of reasoning, content and tool calls, on what the chat templates of real models write."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.text.chat_formats.events import CallArguments, CallBegin, CallEnd, Content, Event, Reasoning
from stoker.text.chat_formats.reader import Reader, read_whole
from stoker.text.chat_formats.table import FORMATS, GENERIC, Format
from tests.brief import every

ROWS = {row.name: row for row in (*FORMATS, GENERIC)}
TURNS: list[dict[str, Any]] = json.loads(Path("tests/golden/chat_turns.json").read_text())
"""Assistant turns with tool calls, as the templates of real models write them."""
ARGUMENTS = {"city": 'New "York" é\nX', "days": 3, "opts": {"a": [1, None]}, "ok": True}
TOOLS: dict[str, dict[str, Any]] = {"probe_weather": {"properties": {"city": {"type": "string"}}}, "probe_ping": {}}
CALL = '<tool_call>\n{"name": "probe_ping", "arguments": {}}\n</tool_call>'


def named(turn: dict[str, Any]) -> str:
    return f"{turn['format']}-{turn['num_calls']}"


turns = pytest.mark.parametrize("turn", TURNS, ids=named)


def row_of(turn: dict[str, Any]) -> Format:
    return replace(ROWS[turn["format"]], thinking=tuple(turn["thinking"]))


def opening_of(turn: dict[str, Any]) -> str:
    """Nemotron's template closes the reasoning of history that it has opened in the prompt by a new turn."""
    return "" if turn["format"] == "nemotron2" else turn["opening"]


def calls_of(events: list[Event]) -> list[tuple[str, str]]:
    """The complete calls."""
    calls: list[tuple[str, str]] = []
    name = arguments = ""
    for event in events:
        if isinstance(event, CallBegin):
            name, arguments = event.name, ""
        elif isinstance(event, CallArguments):
            arguments += event.text
        elif isinstance(event, CallEnd):
            calls.append((name, arguments))
    return calls


def text_of(events: list[Event], kind: type[Content | Reasoning] = Content) -> str:
    return "".join(event.text for event in events if isinstance(event, kind))


def folded(pieces: list[list[Event]]) -> list[tuple[str, str]]:
    """Events of several pieces, neighbors of one kind as one."""
    merged: list[tuple[str, str]] = []
    for event in (event for piece in pieces for event in piece):
        kind = type(event).__name__
        text = getattr(event, "text", getattr(event, "name", ""))
        if merged and merged[-1][0] == kind and isinstance(event, Content | Reasoning | CallArguments):
            merged[-1] = (kind, merged[-1][1] + text)
        else:
            merged.append((kind, text))
    return merged


def read_in(pieces: list[str], turn: dict[str, Any], tokens: set[str]) -> list[tuple[str, str]]:
    reader = Reader(row_of(turn), TOOLS, tokens=tokens, opening=opening_of(turn))
    return folded([*(reader.push(piece) for piece in pieces), reader.flush()])


def tokens_of(turn: dict[str, Any]) -> set[str]:
    """Markers of the turn that would be tokens."""
    return set(re.findall(r"<[｜|/]?[\w:▁｜|.]+>|\[[A-Z_]+\]", turn["turn"]))


@turns
def test_what_a_template_writes_is_read_back(turn: dict[str, Any]) -> None:
    events = read_whole(turn["turn"], row_of(turn), TOOLS, opening_of(turn))
    calls = [(name, json.loads(arguments)) for name, arguments in calls_of(events)]
    assert (
        calls
        == [("probe_weather", ARGUMENTS), ("probe_ping", {})][: ROWS[turn["format"]].max_calls or turn["num_calls"]]
    )
    assert text_of(events, Reasoning) in ("", "probe-reasoning", "probe-content")


@pytest.mark.parametrize("turn", every(2, TURNS), ids=named)
@pytest.mark.parametrize("has_tokens", [False, True])
def test_every_cut_reads_the_same(turn: dict[str, Any], has_tokens: bool) -> None:
    tokens = tokens_of(turn) if has_tokens else set[str]()
    text = Reader(row_of(turn), tokens=tokens).marks.encode(turn["turn"])
    whole = read_in([text], turn, tokens)
    assert read_in(list(text), turn, tokens) == whole
    for at in range(len(text)):
        assert read_in([text[:at], text[at:]], turn, tokens) == whole


@given(st.data())
def test_any_cutting_reads_the_same(data: st.DataObject) -> None:
    turn = data.draw(st.sampled_from(TURNS))
    text = data.draw(st.text("{}<>[]|\"':, \n", max_size=8)) + turn["turn"] + data.draw(st.text(max_size=8))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read_in(pieces, turn, set()) == read_in([text], turn, set())


@given(st.sampled_from(TURNS), st.data())
def test_an_answer_that_is_cut_off_loses_nothing_that_was_complete(turn: dict[str, Any], data: st.DataObject) -> None:
    end = data.draw(st.integers(0, len(turn["turn"])))
    part = read_whole(turn["turn"][:end], row_of(turn), TOOLS, opening_of(turn))
    whole = read_whole(turn["turn"], row_of(turn), TOOLS, opening_of(turn))
    assert calls_of(part) == calls_of(whole)[: len(calls_of(part))]


@given(st.text(max_size=60))
def test_text_without_markers_is_content_as_it_is(text: str) -> None:
    if not any(marker in text for marker in ("<", "`")):
        assert text_of(read_whole(text, ROWS["hermes"], TOOLS)) == text


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call>',
        "<tool_call> is how a call begins",
        'Use <tool_call>{"nom": 1}</tool_call> there',
        "<tool_call>",
        '<tool_call>{"name": "probe_pi',
    ],
)
def test_what_is_no_call_is_content_as_it_was_written(text: str) -> None:
    events = read_whole(text, ROWS["hermes"], TOOLS)
    assert not calls_of(events)
    assert text_of(events).startswith(text.removesuffix("</tool_call>").rstrip()[:20])
    assert all(isinstance(event, Content) for event in events)


def test_white_space_before_a_call_is_no_content() -> None:
    assert text_of(read_whole(f"answer\n\n{CALL}\n", ROWS["hermes"], TOOLS)) == "answer"
    assert text_of(read_whole(f"\n\n{CALL}", ROWS["hermes"], TOOLS)) == ""
    assert text_of(read_whole("\nanswer\n\n", ROWS["hermes"], TOOLS)) == "\nanswer\n\n"


def test_content_after_a_call_stays_content() -> None:
    events = read_whole(f"{CALL}\nDone.", ROWS["hermes"], TOOLS)
    assert calls_of(events) == [("probe_ping", "{}")]
    assert text_of(events).strip() == "Done."


def test_reasoning_that_the_prompt_opens() -> None:
    events = read_whole("why\n</think>\n\nanswer", ROWS["hermes"], opening="assistant\n<think>\n")
    assert events == [Reasoning("why"), Content("answer")]


def test_reasoning_that_is_never_closed_is_reasoning() -> None:
    assert read_whole("<think>\nwhy", ROWS["hermes"]) == [Reasoning("why")]


def test_a_call_may_end_open_reasoning() -> None:
    text = "<think>hm<tool_call>\n<function=probe_ping>\n</function>\n</tool_call>"
    events = read_whole(text, ROWS["qwen_xml"], TOOLS)
    assert text_of(events, Reasoning) == "hm"
    assert calls_of(events) == [("probe_ping", "{}")]
    assert not calls_of(read_whole(text, replace(ROWS["qwen_xml"], calls_end_thinking=False), TOOLS))


def test_without_tools_calls_are_content() -> None:
    assert text_of(read_whole(CALL, ROWS["hermes"])) == CALL


def test_a_marker_that_is_a_token_is_not_read_from_text() -> None:
    reader = Reader(ROWS["hermes"], TOOLS, tokens=["<tool_call>", "</tool_call>"])
    start, end = reader.marks.mark("<tool_call>"), reader.marks.mark("</tool_call>")
    arguments = '{"text": "</tool_call> <tool_call>"}'
    events = [
        *reader.push(f'{CALL} {start}{{"name": "probe_ping", "arguments": {arguments}}}{end}'),
        *reader.flush(),
    ]
    assert calls_of(events) == [("probe_ping", arguments)]
    assert text_of(events).strip() == CALL


def test_an_end_marker_in_a_json_string_is_text() -> None:
    arguments = '{"text": "a </tool_call> b \\" }"}'
    events = read_whole(
        f'<tool_call>{{"name": "probe_ping", "arguments": {arguments}}}</tool_call>', ROWS["hermes"], TOOLS
    )
    assert calls_of(events) == [("probe_ping", arguments)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("3", 3),
        ("True", True),
        ("None", None),
        ("{'a': [1, None]}", {"a": [1, None]}),
        ('{"a": [1, null]}', {"a": [1, None]}),
        ("some text", "some text"),
        ("NaN", "NaN"),
        ("", ""),
    ],
)
def test_untyped_values_between_tags(value: str, expected: object) -> None:
    text = f"<function=probe_ping>\n<parameter=k>\n{value}\n</parameter>\n</function>"
    ((_, arguments),) = calls_of(read_whole(text, ROWS["qwen_xml"], TOOLS))
    assert json.loads(arguments) == {"k": expected}


def test_a_string_between_tags_stays_a_string_if_the_schema_says_so() -> None:
    text = "<function=probe_weather>\n<parameter=city>\n\n3\n\n</parameter>\n</function>"
    ((_, arguments),) = calls_of(read_whole(text, ROWS["qwen_xml"], TOOLS))
    assert json.loads(arguments) == {"city": "\n3\n"}


@pytest.mark.parametrize(
    ("literal", "expected"),
    [
        (r"'it\'s \u00e9\x41\n'", "it's éA\n"),
        ('"x"', "x"),
        ("-1.5e3", -1500.0),
        ("[1, (2, 3), {'a': None}, ]", [1, [2, 3], {"a": None}]),
        ("{}", {}),
        ("False", False),
        ("word", "word"),
    ],
)
def test_python_literals_become_json(literal: str, expected: object) -> None:
    text = f"<|tool_call_start|>[probe_ping(k={literal}, l=1)]<|tool_call_end|>"
    ((_, arguments),) = calls_of(read_whole(text, ROWS["lfm2"], TOOLS))
    assert json.loads(arguments) == {"k": expected, "l": 1}


def test_arguments_before_the_name_and_as_text() -> None:
    text = '<tool_call>{"arguments": {"k": 1}, "id": "x", "name": "probe_ping"}</tool_call>'
    assert calls_of(read_whole(text, ROWS["hermes"], TOOLS)) == [("probe_ping", '{"k": 1}')]
    text = '<tool_call>{"name": "probe_ping", "arguments": "{\\"k\\": 1}"}</tool_call>'
    assert calls_of(read_whole(text, ROWS["hermes"], TOOLS)) == [("probe_ping", '{"k": 1}')]
    text = '<tool_call>{"name": "probe_ping"}</tool_call>'
    assert calls_of(read_whole(text, ROWS["hermes"], TOOLS)) == [("probe_ping", "{}")]


def test_the_generic_row_reads_its_object_or_text() -> None:
    text = '{"tool_calls": [{"name": "probe_ping", "arguments": {"k": 1}}, {"name": "probe_ping", "arguments": {}}]}'
    assert calls_of(read_whole(text, GENERIC, TOOLS)) == [("probe_ping", '{"k": 1}'), ("probe_ping", "{}")]
    assert text_of(read_whole('{"answer": 1}', GENERIC, TOOLS)) == '{"answer": 1}'
    assert text_of(read_whole("  Hello {x}", GENERIC, TOOLS)).strip() == "Hello {x}"


def test_harmony_as_the_model_writes_it() -> None:
    text = (
        "<|channel|>analysis<|message|>why<|end|><|start|>assistant<|channel|>commentary to=functions.probe_ping "
        '<|constrain|>json<|message|>{"k": 1}<|call|>'
    )
    events = read_whole(text, ROWS["harmony"], TOOLS)
    assert text_of(events, Reasoning) == "why"
    assert calls_of(events) == [("probe_ping", '{"k": 1}')]
    final = "<|channel|>analysis<|message|>why<|end|><|start|>assistant<|channel|>final<|message|>answer<|return|>"
    assert read_whole(final, ROWS["harmony"], TOOLS) == [Reasoning("why"), Content("answer")]
