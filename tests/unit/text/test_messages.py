"""What clients make of OpenAI's message shape, and what templates are given."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import pytest

from stoker.errors import InvalidInput, StokerError, UnsupportedParameter
from stoker.text.messages import (
    Message,
    TextPart,
    checked_message,
    message_from_dict,
    message_to_dict,
    messages_from_dicts,
    plain_json,
)


class Colour(StrEnum):
    RED = "red"


def parse(**fields: object) -> Message:
    return message_from_dict({"role": "user", **fields}, "messages[0]")


def test_the_plain_message() -> None:
    assert parse(content="hi") == Message(role="user", content="hi")
    assert message_to_dict(parse(content="hi")) == {"role": "user", "content": "hi"}


@pytest.mark.parametrize("fields", [{}, {"content": None}, {"content": None, "name": None, "tool_calls": None}])
def test_null_is_the_same_as_missing(fields: dict[str, object]) -> None:
    assert parse(**fields) == Message(role="user")
    assert message_to_dict(parse(**fields)) == {"role": "user", "content": None}


def test_an_empty_string_is_content() -> None:
    assert parse(content="").content == ""
    assert message_to_dict(parse(content=""))["content"] == ""


def test_every_kind_of_text_part() -> None:
    content = ["a", {"type": "text", "text": "b"}, {"text": "c"}, {"type": "input_text", "text": "d"}]
    content += [{"type": "output_text", "text": "e"}, {"type": "refusal", "refusal": "f"}]
    message = parse(content=content)
    assert message.content == tuple(TextPart(text) for text in "abcdef")
    assert message.text == "a\nb\nc\nd\ne\nf"
    assert parse(content=[{"type": None, "text": "a"}]).text == "a"


def test_parts_and_strings_convert_into_each_other() -> None:
    parts = Message(role="user", content=(TextPart("a"), TextPart("b")))
    assert message_to_dict(parts)["content"] == "a\nb"
    assert message_to_dict(parts, parts=True)["content"] == [{"type": "text", "text": t} for t in "ab"]
    assert message_to_dict(parse(content="a"), parts=True)["content"] == [{"type": "text", "text": "a"}]
    assert message_to_dict(parse(), parts=True)["content"] is None
    assert message_to_dict(parse(content=[]))["content"] == ""


@pytest.mark.parametrize("thought", ["because", [{"type": "text", "text": "be"}, {"type": "text", "text": "cause"}]])
def test_a_thinking_part_of_an_assistants_content_is_reasoning(thought: Any) -> None:
    thinking = {"type": "thinking", "thinking": thought, "signature": "s"}
    message = parse(role="assistant", content=[thinking, {"type": "text", "text": "so"}])
    assert (message.reasoning, message.text) == ("because", "so")
    message = parse(role="assistant", content=[thinking])
    assert (message.reasoning, message.content) == ("because", None)
    assert parse(role="assistant", content=[thinking], reasoning_content="field").reasoning == "field"
    assert parse(role="assistant", content=[thinking], reasoning_content="").reasoning == message.reasoning


@pytest.mark.parametrize(
    ("role", "content", "where"),
    [
        ("assistant", [{"type": "thinking", "thinking": 1}], "content[0].thinking"),
        ("assistant", [{"type": "thinking", "thinking": "t"}, {"type": "text", "text": 1}], "content[1].text"),
        ("user", [{"type": "thinking", "thinking": "t"}], "content[0]"),
    ],
)
def test_a_thinking_part_that_is_none_is_named(role: str, content: Any, where: str) -> None:
    with pytest.raises(StokerError) as caught:
        parse(role=role, content=content)
    assert caught.value.fields["parameter"] == f"messages[0].{where}"


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_has_three_names(name: str) -> None:
    message = parse(**{name: "because"})
    assert message.reasoning == "because"
    values = message_to_dict(message)
    assert [values[field] for field in ("reasoning_content", "reasoning", "thinking")] == ["because"] * 3


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ('{"a": [1]}', {"a": [1]}),
        ({"a": 1}, {"a": 1}),
        ('{"a": ', '{"a": '),
        ("", {}),
        (" ", {}),
        ("null", {}),
        (None, {}),
        ("[1]", "[1]"),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_arguments_of_tool_calls_are_objects_where_they_can_be(given: object, seen: object) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": given}}
    message = parse(tool_calls=[call])
    assert message.tool_calls == (call,)
    expected = {"id": "1", "type": "function", "function": {"name": "f", "arguments": seen}}
    assert message_to_dict(message)["tool_calls"] == [expected]


def test_unknown_fields_are_kept_for_the_template() -> None:
    message = parse(content="x", tool_call_id="7", weight=1, audio={"id": "a"}, refusal=None)
    assert message.extra == {"weight": 1, "audio": {"id": "a"}}
    assert message_to_dict(message) == {
        "role": "user",
        "content": "x",
        "tool_call_id": "7",
        "weight": 1,
        "audio": {"id": "a"},
    }


def test_a_conversation_keeps_its_order_and_repetitions() -> None:
    raw = [{"role": role, "content": role} for role in ("system", "system", "user", "user", "developer")]
    assert [m.role for m in messages_from_dicts(raw)] == ["system", "system", "user", "user", "developer"]


@pytest.mark.parametrize(
    ("message", "where"),
    [
        ("text", "messages[1]"),
        ({"content": "x"}, "messages[1].role"),
        ({"role": "", "content": "x"}, "messages[1].role"),
        ({"role": 1}, "messages[1].role"),
        ({"role": "user", "content": 5}, "messages[1].content"),
        ({"role": "user", "content": {"text": "x"}}, "messages[1].content"),
        ({"role": "user", "content": "\ud800"}, "messages[1].content"),
        ({"role": "user", "content": ["ok", 1]}, "messages[1].content[1]"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content[0].text"),
        ({"role": "user", "content": [{"type": "text", "text": 1}]}, "messages[1].content[0].text"),
        ({"role": "user", "content": [{"type": 1}]}, "messages[1].content[0].type"),
        ({"role": "user", "content": [{"type": "", "text": "a"}]}, "messages[1].content[0]"),
        ({"role": "user", "name": 1}, "messages[1].name"),
        ({"role": "user", "thinking": ["x"]}, "messages[1].thinking"),
        ({"role": "user", "tool_calls": {}}, "messages[1].tool_calls"),
        ({"role": "user", "tool_calls": ["f"]}, "messages[1].tool_calls[0]"),
        ({"role": "user", "tool_call_id": 1}, "messages[1].tool_call_id"),
        ({"role": "user", "other": {"x": object()}}, "messages[1].other"),
        ({"role": "user", 5: "x"}, "messages[1]"),
    ],
)
def test_what_is_wrong_is_named(message: object, where: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        messages_from_dicts([{"role": "user", "content": "fine"}, message])
    assert caught.value.fields["parameter"] == where
    assert f"`{where}`" in caught.value.message


def test_videos_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedParameter, match="'video_url' are not supported") as caught:
        parse(content=[{"type": "video_url", "video_url": {"url": "data:"}}])
    assert caught.value.fields["parameter"] == "messages[0].content[0]"


@pytest.mark.parametrize("raw", [None, {}, "hi", [], ()])
def test_a_conversation_is_a_list_with_something_in_it(raw: object) -> None:
    with pytest.raises(InvalidInput, match="at least one message"):
        messages_from_dicts(raw)


def test_plain_json_has_exact_types_only() -> None:
    plain = plain_json({"s": Colour.RED, "t": (1, 2.5, None, True)}, "x")
    assert plain == {"s": "red", "t": [1, 2.5, None, True]}
    assert isinstance(plain, dict)
    assert type(plain["s"]) is str


def test_plain_json_refuses_endless_nesting() -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(InvalidInput, match="nested too deep"):
        plain_json(endless, "x")


def test_a_valid_message_is_left_as_it_is() -> None:
    call: dict[str, Any] = {"function": {"name": "f", "arguments": {"x": 1}}}
    message = Message(
        role="assistant",
        content=(TextPart("a"), TextPart("b")),
        name="n",
        reasoning="r",
        tool_calls=(call,),
        tool_call_id="1",
        extra={"content": None, "prefix": True},
    )
    assert checked_message(message, "messages[0]") == message
    parts: Any = ["a", {"type": "text", "text": "b"}]
    assert checked_message(Message(role="user", content=parts), "m").content == message.content


@pytest.mark.parametrize(
    ("field", "where"),
    [
        ({"role": ""}, "role"),
        ({"role": 5}, "role"),
        ({"content": 5}, "content"),
        ({"content": (TextPart("a"), TextPart("\ud800"))}, "content[1].text"),
        ({"name": 5}, "name"),
        ({"reasoning": ["r"]}, "reasoning"),
        ({"tool_calls": ("f",)}, "tool_calls[0]"),
        ({"tool_call_id": 5}, "tool_call_id"),
        ({"extra": {"x": object()}}, "extra"),
        ({"extra": 5}, "extra"),
    ],
)
def test_a_wrong_field_of_a_message_is_named(field: dict[str, Any], where: str) -> None:
    fields: dict[str, Any] = {"role": "user", **field}
    with pytest.raises(InvalidInput) as caught:
        checked_message(Message(**fields), "messages[3]")
    assert caught.value.fields["parameter"] == f"messages[3].{where}"
