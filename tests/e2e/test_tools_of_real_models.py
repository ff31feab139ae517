"""Tools and structured output with the real clients, against a real server with a real model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from anthropic import Anthropic
from ollama import Client
from openai import OpenAI

MODEL = "smollm2"
ASKED: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"city": {"enum": ["Paris", "Rome"]}},
}
FUNCTION: dict[str, Any] = {"name": "get_weather", "description": "The weather.", "parameters": PARAMETERS}
OTHER: dict[str, Any] = {"name": "get_time", "parameters": {"type": "object", "properties": {}}}
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


@pytest.fixture
def openai(served_smollm2: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{served_smollm2}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_answers_are_json_of_the_schema(openai: Any, temperature: float) -> None:
    reply = openai.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Describe a person."}],
        temperature=temperature,
        seed=3,
        max_tokens=120,
        response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}},
    )
    assert reply.choices[0].finish_reason == "stop"
    jsonschema.validate(json.loads(reply.choices[0].message.content or ""), PERSON)


def test_a_required_call_obeys_its_schema_streamed_and_whole(openai: Any) -> None:
    request: dict[str, Any] = {
        "model": MODEL,
        "messages": ASKED,
        "tools": [{"type": "function", "function": each} for each in (FUNCTION, OTHER)],
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        "temperature": 0,
        "max_tokens": 80,
    }
    whole = openai.chat.completions.create(**request).choices[0]
    assert whole.finish_reason == "tool_calls"
    (call,) = whole.message.tool_calls
    assert call.function.name == "get_weather"
    jsonschema.validate(json.loads(call.function.arguments), PARAMETERS)
    with openai.chat.completions.create(**request, stream=True) as stream:
        deltas = [chunk.choices[0].delta for chunk in stream]
    pieces = [piece.function.arguments for delta in deltas for piece in delta.tool_calls or () if piece.index == 0]
    assert "".join(pieces) == call.function.arguments


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_calls_that_the_model_chooses_to_make_obey_the_schema(openai: Any, temperature: float) -> None:
    """The prompt's last words make a call likely; what the call says is up to the grammar."""
    asked = [{"role": "user", "content": "Write: <tool_call>"}, {"role": "assistant", "content": "<tool_call>"}]
    choice = openai.chat.completions.create(
        model=MODEL,
        messages=asked,
        tools=[{"type": "function", "function": each} for each in (FUNCTION, OTHER)],
        parallel_tool_calls=False,
        temperature=temperature,
        seed=5,
        max_tokens=120,
        extra_body={"continue_final_message": True, "add_generation_prompt": False},
    ).choices[0]
    for call in choice.message.tool_calls or ():
        parameters = PARAMETERS if call.function.name == "get_weather" else OTHER["parameters"]
        jsonschema.validate(json.loads(call.function.arguments), parameters)
    assert choice.finish_reason in ("tool_calls", "stop", "length")
    assert len(choice.message.tool_calls or ()) <= 1


def test_any_of_the_allowed_tools_but_no_other_is_called(openai: Any) -> None:
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "get_time"}}]}
    choice = openai.chat.completions.create(
        model=MODEL,
        messages=ASKED,
        tools=[{"type": "function", "function": each} for each in (FUNCTION, OTHER)],
        tool_choice={"type": "allowed_tools", "allowed_tools": allowed},
        temperature=0,
        max_tokens=80,
    ).choices[0]
    assert [call.function.name for call in choice.message.tool_calls] == ["get_time"]


def test_anthropic_s_any_is_a_call(served_smollm2: str) -> None:
    with Anthropic(base_url=served_smollm2, api_key="none", max_retries=0) as client:
        reply = client.messages.create(
            model=MODEL,
            max_tokens=80,
            messages=ASKED,
            tools=[{"name": "get_weather", "input_schema": PARAMETERS}],
            tool_choice={"type": "any", "disable_parallel_tool_use": True},
        )
    blocks: list[Any] = list(reply.content)
    (block,) = blocks
    assert (reply.stop_reason, block.type) == ("tool_use", "tool_use")
    jsonschema.validate(block.input, PARAMETERS)


def test_ollama_s_format_is_a_schema(served_smollm2: str) -> None:
    options = {"num_predict": 120, "seed": 4}
    asked = [{"role": "user", "content": "A person."}]
    with Client(host=served_smollm2, trust_env=False) as client:
        reply = client.chat(MODEL, asked, format=PERSON, options=options)
    jsonschema.validate(json.loads(reply.message.content or ""), PERSON)


def test_responses_have_a_text_format(openai: Any) -> None:
    reply = openai.responses.create(
        model=MODEL,
        input="A person.",
        max_output_tokens=120,
        text={"format": {"type": "json_schema", "name": "person", "schema": PERSON}},
    )
    jsonschema.validate(json.loads(reply.output_text), PERSON)
