"""Tools, structured output and the shorthands of the Python interface, over the scripted backend."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, cast, get_type_hints

import jsonschema
import msgspec
import pydantic
import pytest

from stoker import LLM, AsyncLLM, CallArguments, CallBegin, CallEnd, Content, Message, SamplingParams
from stoker.chat import planning
from stoker.errors import InvalidInput, UnsupportedParameter, UnsupportedSchema
from stoker.llm.functions import tool_function
from stoker.llm.inputs import as_messages
from stoker.llm.options import SamplingOptions
from stoker.text.chat_template import CHATML
from stoker.text.media_parts import MediaPart
from tests.pdf_files import pdf_file
from tests.projector_files import base64_of, data_url, picture

CALL = '{"tool_calls": [{"name": "weather", "arguments": {"city": "Zürich", "days": 2}}]}'


def weather(city: str, days: int = 1, unit: Literal["C", "F"] = "C") -> dict[str, object]:
    """Says how the weather will be.

    Args:
        city: Name of the city.
        days: How many days
            from today.
    """
    return {"city": city, "days": days, "unit": unit}


DEFINITION: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Says how the weather will be.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Name of the city."},
                "days": {"type": "integer", "description": "How many days\nfrom today.", "default": 1},
                "unit": {"enum": ["C", "F"], "default": "C"},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def test_a_model_without_a_chat_template_ends_its_turn_as_chatml_does(monkeypatch: pytest.MonkeyPatch) -> None:
    # To the scripted model <|im_end|> is a token that ends an answer by itself. To many base models it is plain text.
    assert planning.CHATML_END in CHATML
    monkeypatch.setattr(planning, "CHATML_END", "<END>")
    turns = "Fine, thanks.<END>\nuser\nAnd"
    with LLM(turns, backend="scripted") as llm:
        for answer in (llm.chat("How are you?"), llm.chat("How are you?", stop="And")):
            assert (answer.text, answer.finish_reason, answer.stop_match) == ("Fine, thanks.", "stop", None)
        assert llm.chat("How are you?", ignore_eos=True, max_tokens=20).text == turns[:20]
        assert llm.chat("How are you?", stop=", ").stop_match == ", "
        assert llm.generate("How are you?").text == turns, "a text that is continued has no turns"


@pytest.fixture(scope="module")
def caller() -> Iterator[LLM]:
    """Always calls `weather`."""
    with LLM(CALL, backend="scripted", ctx_size=4096) as llm:
        yield llm


@pytest.fixture(scope="module")
def babbler() -> Iterator[LLM]:
    """Writes whatever it may."""
    with LLM("scripted", backend="scripted", ctx_size=4096) as llm:
        yield llm


def test_a_function_is_a_tool(caller: LLM) -> None:
    answer = caller.chat("How will the weather be?", tools=[weather])
    assert (answer.text, answer.finish_reason) == ("", "tool_calls")
    (call,) = answer.tool_calls
    assert (call.name, call.values) == ("weather", {"city": "Zürich", "days": 2})
    assert call.run() == {"city": "Zürich", "days": 2, "unit": "C"}
    assert answer._repr_markdown_() == f"`weather({call.arguments})`"


def test_a_conversation_goes_on_with_the_result(caller: LLM) -> None:
    messages: list[Any] = [{"role": "user", "content": "How will the weather be?"}]
    answer = caller.chat(messages, tools=[DEFINITION])
    (call,) = answer.tool_calls
    messages += [answer.message, call.result({"sky": "grün"})]
    assert messages[-1] == Message(role="tool", name="weather", tool_call_id=call.id, content='{"sky": "grün"}')
    prompt = caller._session.render_chat(as_messages(messages, takes_images=False))
    assert '"city": "Zürich"' in prompt
    assert 'Result of weather:\n{"sky": "grün"}' in prompt
    with pytest.raises(InvalidInput, match="is a definition, not a function"):
        call.run()


def test_the_events_of_a_stream_are_the_answer(caller: LLM) -> None:
    stream = caller.stream_chat("How?", tools=[weather])
    first, *pieces, last = list(stream.events())
    assert (first, last) == (CallBegin("weather"), CallEnd())
    arguments = "".join(piece.text for piece in pieces if isinstance(piece, CallArguments))
    assert arguments == stream.completion.tool_calls[0].arguments
    with caller.stream("x") as text:
        assert {type(part) for part in text.events()} == {Content}
    assert text.completion.text == CALL


def test_a_call_that_is_cut_off(caller: LLM) -> None:
    answer = caller.chat("How?", tools=[weather], max_tokens=70)
    (call,) = answer.tool_calls
    assert (answer.finish_reason, call.is_complete) == ("length", False)
    with pytest.raises(InvalidInput, match="arguments of `weather` are not valid JSON"):
        call.run()


def test_without_tools_calls_are_text(caller: LLM) -> None:
    answer = caller.chat("How?")
    assert (answer.text, answer.tool_calls, answer.finish_reason) == (CALL, (), "stop")
    assert caller.chat("How?", tools=[weather], tool_choice="none").tool_calls == ()


@pytest.mark.parametrize("choice", ["required", "weather", weather])
def test_a_required_call_obeys_its_schema(babbler: LLM, choice: Any) -> None:
    def pick(color: Literal["red", "green"], number: Annotated[int, msgspec.Meta(ge=0, le=99)]) -> str:
        return f"{number} {color}"

    def sunny(is_sunny: bool) -> str:
        return f"{is_sunny}"

    tools = [pick, sunny]
    choice = pick if choice is weather else "pick" if choice == "weather" else choice
    for seed in range(3):
        answer = babbler.chat("Go!", tools=tools, tool_choice=choice, parallel_tool_calls=False, seed=seed)
        (call,) = answer.tool_calls
        assert isinstance(call.run(), str)
        assert choice == "required" or call.name == "pick"


class Color(TypedDict):
    name: Literal["red", "green"]
    is_dark: bool


@dataclasses.dataclass
class Paint:
    colors: Annotated[list[Color], msgspec.Meta(min_length=1, max_length=2)]
    litres: Literal[1, 5, 10] = 1


class Room(pydantic.BaseModel):
    paint: Literal["red", "green"]
    doors: int = pydantic.Field(ge=0, le=4)


class House(msgspec.Struct):
    rooms: Annotated[list[Room], msgspec.Meta(max_length=2)]


@pytest.mark.parametrize("kind", [Color, Paint, Room, House, Literal["a", "b"], list[bool]])
def test_an_answer_is_a_value_of_its_class(babbler: LLM, kind: Any) -> None:
    """As a model of random weights writes it."""
    wanted = kind if kind in (Paint, Room, House) else object
    for seed in range(3):
        for answer in (
            babbler.chat("Go!", response_format=kind, seed=seed, max_tokens=2000),
            babbler.generate("Go!", response_format=kind, seed=seed, max_tokens=2000),
        ):
            assert answer.finish_reason == "stop", answer.text
            assert isinstance(answer.parsed, wanted)
            assert answer.parsed is not None


def test_formats_may_be_dicts(babbler: LLM) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    formats: list[Any] = [
        schema,
        {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        {"json": schema},
    ]
    for response_format in formats:
        answer = babbler.generate("x", response_format=response_format)
        jsonschema.validate(answer.parsed, schema)
        assert json.loads(answer.text) == answer.parsed
    assert babbler.generate("x", response_format={"choice": ["yes", "no"]}).text in ("yes", "no")
    number = babbler.generate("x", response_format={"regex": "[0-9]{3}"})
    assert number.text.isdecimal()
    assert number.parsed is None
    assert babbler.generate("x", response_format={"type": "text"}, max_tokens=3).parsed is None


@pytest.mark.parametrize("wrong", ["json", 5, {"regex": 5}, {"type": "json_schema"}, [Room], complex])
def test_a_wrong_format_is_named(babbler: LLM, wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="response_format") as caught:
        babbler.generate("x", response_format=wrong)
    assert str(caught.value.fields["parameter"]).startswith("response_format")


def test_a_format_that_cannot_be_enforced_is_refused(babbler: LLM) -> None:
    schema = {"type": "array", "contains": {"type": "integer"}}
    with pytest.raises(UnsupportedSchema, match="contains"):
        babbler.chat("x", response_format=schema)


def test_an_answer_that_is_cut_off_is_no_value(babbler: LLM) -> None:
    answer = babbler.generate("x", response_format=Room, max_tokens=3)
    assert (answer.finish_reason, answer.parsed) == ("length", None)


def test_functions_describe_themselves() -> None:
    assert tool_function(weather, "t").definition == DEFINITION


TAGS = ["a"]


def test_parameters_of_every_kind() -> None:
    def tool(
        room: Room, paint: Paint, note: Annotated[str, "A note"], tags: list[str] = TAGS, extra: Any = None
    ) -> Any:
        return room, paint, note, tags, extra

    made = tool_function(tool, "t")
    parameters = made.definition["function"]["parameters"]
    assert parameters["properties"]["note"] == {"type": "string", "description": "A note"}
    assert parameters["required"] == ["room", "paint", "note"]
    values = {
        "room": {"paint": "red", "doors": 1},
        "paint": {"colors": [{"name": "red", "is_dark": True}]},
        "note": "n",
    }
    jsonschema.Draft202012Validator.check_schema(parameters)
    room, paint, note, tags, extra = cast("Any", made(values))
    assert (room, paint) == (Room(paint="red", doors=1), Paint([{"name": "red", "is_dark": True}]))
    assert (note, tags, extra) == ("n", ["a"], None)
    with pytest.raises(InvalidInput, match=r"arguments of `tool` do not fit.*room"):
        made({"note": "n", "paint": values["paint"]})
    with pytest.raises(InvalidInput, match=r"arguments of `tool` do not fit"):
        made({**values, "room": {"paint": "blue"}})


@pytest.mark.parametrize(
    ("tools", "complaint"),
    [
        ([5], r"`tools\[0\]` must be a function"),
        ([lambda *values: values], r"take named parameters"),
        ([lambda value, /: value], r"take named parameters"),
        (weather, "must be a list"),
        ([DEFINITION, weather], "several tools called 'weather'"),
        ([{"type": "function"}], r"tools\[0\]\.function"),
    ],
)
def test_wrong_tools_are_named(caller: LLM, tools: Any, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        caller.chat("x", tools=tools)


def test_sampling_may_be_keywords_or_a_dict(babbler: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=5)
    expected = babbler.generate("p", params).text
    assert babbler.generate("p", temperature=0, max_tokens=5).text == expected
    assert babbler.generate("p", {"temperature": 0, "max_tokens": 5}).text == expected
    assert babbler.generate(["p", "q"], params, max_tokens=2)[0].usage.completion_tokens == 2
    assert "".join(babbler.stream("p", temperature=0, max_tokens=5)) == expected
    assert babbler.chat("p", params).text == babbler.chat([{"role": "user", "content": "p"}], params).text


def test_the_keywords_are_those_of_sampling_params() -> None:
    fields = {field.name: field.type for field in dataclasses.fields(SamplingParams)}
    assert get_type_hints(SamplingOptions) == {
        name: hint for name, hint in get_type_hints(SamplingParams).items() if name in fields
    }


@pytest.mark.parametrize(
    ("keyword", "meant"), [("temp", "temperature"), ("tempature", "temperature"), ("max_new_tokens", "max_tokens")]
)
def test_an_unknown_keyword_is_answered_with_the_one_that_was_meant(babbler: LLM, keyword: str, meant: str) -> None:
    wrong: dict[str, Any] = {keyword: 1}
    asks = [lambda: babbler.generate("x", **wrong), lambda: SamplingParams(**wrong), lambda: babbler.stream("x", wrong)]
    for ask in asks:
        with pytest.raises(TypeError, match=f"'{keyword}'. Did you mean '{meant}'"):
            ask()


def test_keyword_stream_is_answered_with_the_methods_that_stream(babbler: LLM) -> None:
    wrong: dict[str, Any] = {"stream": True}
    with pytest.raises(TypeError, match=r"takes no 'stream': `stream\(\)` and `stream_chat\(\)`"):
        babbler.generate("x", **wrong)


def test_unknown_options_of_a_model() -> None:
    for kind in (LLM, AsyncLLM):
        with pytest.raises(TypeError, match=r"'n_ctx'. Did you mean 'ctx_size'\?"):
            kind("scripted", n_ctx=5)  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match=r"argument 'zzz'$"):
        LLM("scripted", zzz=5)  # pyright: ignore[reportCallIssue]


def test_tokens_and_back(babbler: LLM) -> None:
    assert babbler.tokenize("aé<s>") == [97, 0xC3, 0xA9, 256]
    assert babbler.tokenize("a", add_bos=True) == [256, 97]
    assert babbler.detokenize([97, 0xC3, 0xA9, 256]) == "aé<s>"
    with pytest.raises(InvalidInput, match="outside the vocabulary"):
        babbler.detokenize([10**6])


def test_reasoning_that_a_model_does_not_have(babbler: LLM) -> None:
    with pytest.raises(InvalidInput, match="does not support reasoning"):
        babbler.chat("x", reasoning=True)
    assert babbler.chat("x", reasoning=False, max_tokens=2).reasoning == ""
    for wrong in (1.5, -1, {"level": 5}, {"budget": "x"}):
        with pytest.raises(InvalidInput, match="reasoning"):
            babbler.chat("x", reasoning=cast("Any", wrong))


def test_asyncio_has_all_of_it() -> None:
    async def ask() -> None:
        async with AsyncLLM(CALL, backend="scripted", ctx_size=4096) as llm:
            answer = await llm.chat("How?", tools=[weather])
            assert answer.tool_calls[0].run() == {"city": "Zürich", "days": 2, "unit": "C"}
            events = [event async for event in llm.stream_chat("How?", tools=[weather]).events()]
            assert (events[0], events[-1]) == (CallBegin("weather"), CallEnd())
            assert await llm.detokenize(await llm.tokenize("hé")) == "hé"
            one, two = await llm.generate(["a", "b"], max_tokens=1, temperature=0)
            assert (one.usage.completion_tokens, two.usage.completion_tokens) == (1, 1)
            with pytest.raises(InvalidInput, match="response_format"):
                await llm.generate("x", response_format="json")
            with pytest.raises(TypeError, match="Did you mean 'temperature'"):
                llm.generate("x", temp=1)  # pyright: ignore[reportCallIssue]

    asyncio.run(ask())


def test_an_image_is_refused_and_not_dropped(babbler: LLM) -> None:
    parts = [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": data_url(picture("red"))}},
    ]
    with pytest.raises(UnsupportedParameter, match="takes no images"):
        babbler.chat([{"role": "user", "content": parts}], max_tokens=4)


def test_files_are_their_text(tmp_path: Path) -> None:
    path = tmp_path / "two.pdf"
    path.write_bytes(pdf_file(["Hello", "World"]))
    text = "[page 1 of 2]\nHello\n[page 2 of 2]\nWorld"
    source = {"type": "text", "data": "abc"}
    for part, expected in (
        ({"type": "file", "file": path}, f"two.pdf\n{text}"),
        ({"type": "file", "file": path.read_bytes()}, text),
        ({"type": "file", "file": {"file_data": base64_of(path.read_bytes()), "filename": "a"}}, f"a\n{text}"),
        ({"type": "document", "source": source, "title": "T"}, "T\nabc"),
    ):
        message = as_messages([{"role": "user", "content": [part]}], takes_images=False)[0]
        assert message.text.rstrip() == expected
    seen = as_messages([{"role": "user", "content": [{"type": "file", "file": path}]}], takes_images=True)[0]
    assert isinstance(seen.content, tuple)
    assert [part.media.kind for part in seen.content if isinstance(part, MediaPart)] == ["image", "image"]
