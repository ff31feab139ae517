"""Requests for tools, reasoning and structured output that llama-server serves, each with what its answer must have.

The bodies are those of its documentation and its tests. The template of both servers is that of `qwen3`, and
any weights will do: no check depends on what a model says.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jsonschema

HI: list[dict[str, Any]] = [{"role": "user", "content": "How is the weather in Paris?"}]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "is_warm": {"type": "boolean"}},
    "required": ["city", "is_warm"],
    "additionalProperties": False,
}
WEATHER: dict[str, Any] = {"name": "weather", "description": "Says how it is.", "parameters": SCHEMA}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": WEATHER},
    {"type": "function", "function": {**WEATHER, "name": "forecast"}},
]
FLAT: list[dict[str, Any]] = [{"type": "function", **WEATHER}]
CLAUDE: list[dict[str, Any]] = [{"name": "weather", "description": "Says how it is.", "input_schema": SCHEMA}]
CALL: dict[str, Any] = {
    "id": "a1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Paris"}'},
}
HISTORY: list[dict[str, Any]] = [
    *HI,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "a1", "content": "warm"},
]
IMAGE_FREE_PARTS: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": "Hi."}]}]
CHAT = "/v1/chat/completions"

Check = Callable[[Any], bool]


def is_served(reply: Any) -> bool:
    return isinstance(reply, dict | list)


def message(reply: Any) -> Any:
    return reply["choices"][0]["message"]


def obeys(text: str, schema: Any) -> bool:
    value = json.loads(text)
    jsonschema.validate(value, schema)
    return True


def has_json(reply: Any) -> bool:
    """A model may reason up to the limit although it should not."""
    return reply["choices"][0]["finish_reason"] == "length" or obeys(message(reply)["content"], SCHEMA)


def completes_json(reply: Any) -> bool:
    return obeys(reply["content"], SCHEMA)


def calls(reply: Any) -> bool:
    return all(obeys(call["function"]["arguments"], SCHEMA) for call in message(reply)["tool_calls"])


def is_digits(reply: Any) -> bool:
    return message(reply)["content"].strip().isdigit()


def does_not_reason(reply: Any) -> bool:
    return not message(reply).get("reasoning_content")


@dataclass(frozen=True, slots=True)
class Case:
    """A request, and what its answer must have. Of a stream only its end is looked at."""

    name: str
    body: Any
    """None = there is none, and the request is a GET."""
    check: Check = is_served
    path: str = CHAT
    is_stream: bool = False


def chat(name: str, check: Check = is_served, **fields: Any) -> Case:
    """A conversation that does not reason, unless the case says so."""
    plain = {"chat_template_kwargs": {"enable_thinking": False}, "max_tokens": 160, "temperature": 0.5, "seed": 1}
    return Case(name, {"messages": HI, **plain, **fields}, check)


def streamed(case: Case) -> Case:
    return Case(f"{case.name}, streamed", {**case.body, "stream": True}, is_served, case.path, is_stream=True)


_FORMAT = {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA, "strict": True}}
_BASE = (
    chat("no tools"),
    chat("content in parts", messages=IMAGE_FREE_PARTS),
    chat("tool_choice auto", tools=TOOLS, tool_choice="auto"),
    chat("tool_choice missing", tools=TOOLS),
    chat("tool_choice none", tools=TOOLS, tool_choice="none"),
    chat("tool_choice required", calls, tools=TOOLS[:1], tool_choice="required", parallel_tool_calls=False),
    chat("parallel_tool_calls", tools=TOOLS, parallel_tool_calls=True),
    chat("parse_tool_calls", tools=TOOLS, parse_tool_calls=False),
    chat("results of tools", messages=HISTORY, tools=TOOLS),
    chat("results without tools", messages=HISTORY),
    chat("a tool without parameters", tools=[{"type": "function", "function": {"name": "now"}}]),
    chat("response_format text", response_format={"type": "text"}),
    chat("response_format json_object", response_format={"type": "json_object"}, max_tokens=8),
    chat(
        "response_format json_object with a schema", has_json, response_format={"type": "json_object", "schema": SCHEMA}
    ),
    chat("response_format json_schema", has_json, response_format=_FORMAT),
    chat("response_format beside tools", tools=TOOLS, response_format=_FORMAT),
    chat("json_schema", has_json, json_schema=SCHEMA),
    chat("grammar", is_digits, grammar="root ::= [0-9]{1,4}"),
    chat("a grammar with recursion", grammar='root ::= "(" root ")" | "x"'),
    chat("reasoning_format none", reasoning_format="none"),
    chat("reasoning_format auto", reasoning_format="auto"),
    chat("reasoning_format deepseek", reasoning_format="deepseek"),
    chat("reasoning_format deepseek-legacy", reasoning_format="deepseek-legacy"),
    chat("enable_thinking off", does_not_reason),
    chat("enable_thinking on", chat_template_kwargs={"enable_thinking": True}),
    chat("enable_thinking as text", chat_template_kwargs={"enable_thinking": "false"}),
    chat("reasoning_effort", reasoning_effort="low"),
    chat("reasoning_budget_tokens 0", reasoning_budget_tokens=0),
    chat("reasoning_budget_tokens", reasoning_budget_tokens=8, reasoning_budget_message=" Enough."),
    chat("thinking_budget_tokens", thinking_budget_tokens=8),
    chat("reasoning_control", reasoning_control=True),
    chat(
        "reasoning in the history", messages=[*HI, {"role": "assistant", "content": "x", "reasoning_content": "y"}, *HI]
    ),
    chat(
        "continue_final_message",
        messages=[*HI, {"role": "assistant", "content": "It is"}],
        continue_final_message=True,
        add_generation_prompt=False,
    ),
    chat("stop", stop=["\n"]),
    chat("logprobs", logprobs=True, top_logprobs=2),
    chat("logit_bias", logit_bias=[[5, -1]]),
    chat("n", n=2),
    chat("echo", echo=True),
    chat("timings", timings_per_token=True, return_progress=True),
)
_OTHERS = (
    Case(
        "control",
        {"id": "chatcmpl-none", "action": "reasoning_end"},
        lambda reply: not reply["success"],
        f"{CHAT}/control",
    ),
    Case("tokens of a chat with tools", {"messages": HI, "tools": TOOLS}, is_served, f"{CHAT}/input_tokens"),
    Case(
        "template with tools",
        {"messages": HI, "tools": TOOLS},
        lambda reply: "weather" in reply["prompt"],
        "/apply-template",
    ),
    Case(
        "completion with json_schema",
        {"prompt": "x", "json_schema": SCHEMA, "n_predict": 160, "temperature": 0},
        completes_json,
        "/completion",
    ),
    Case(
        "completion with grammar",
        {"prompt": "x", "grammar": "root ::= [0-9]{1,4}", "n_predict": 8},
        lambda reply: reply["content"].isdigit(),
        "/completion",
    ),
    Case(
        "completions with json_schema",
        {"prompt": "x", "json_schema": SCHEMA, "max_tokens": 60},
        is_served,
        "/v1/completions",
    ),
    Case(
        "completions with grammar",
        {"prompt": "x", "grammar": 'root ::= "a"', "max_tokens": 4},
        is_served,
        "/v1/completions",
    ),
    Case("responses", {"input": "Hi.", "max_output_tokens": 8}, is_served, "/v1/responses"),
    Case("responses with tools", {"input": "Hi.", "tools": FLAT, "max_output_tokens": 8}, is_served, "/v1/responses"),
    Case(
        "responses with results",
        {
            "input": [
                {"role": "user", "content": "Hi."},
                {"type": "function_call", "call_id": "a1", "name": "weather", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "a1", "output": "warm"},
            ],
            "tools": FLAT,
            "max_output_tokens": 8,
        },
        is_served,
        "/v1/responses",
    ),
    Case(
        "responses with a schema",
        {
            "input": "Hi.",
            "text": {"format": {"type": "json_schema", "name": "w", "schema": SCHEMA}},
            "max_output_tokens": 8,
        },
        is_served,
        "/v1/responses",
    ),
    Case(
        "responses with effort",
        {"input": "Hi.", "reasoning": {"effort": "low"}, "max_output_tokens": 8},
        is_served,
        "/v1/responses",
    ),
    Case("tokens of responses", {"input": "Hi.", "tools": FLAT}, is_served, "/v1/responses/input_tokens"),
    Case("messages", {"messages": HI, "max_tokens": 8}, is_served, "/v1/messages"),
    Case("messages with tools", {"messages": HI, "tools": CLAUDE, "max_tokens": 8}, is_served, "/v1/messages"),
    Case(
        "messages with any tool",
        {"messages": HI, "tools": CLAUDE, "tool_choice": {"type": "any"}, "max_tokens": 60},
        is_served,
        "/v1/messages",
    ),
    Case(
        "messages with one tool",
        {"messages": HI, "tools": CLAUDE, "tool_choice": {"type": "tool", "name": "weather"}, "max_tokens": 60},
        is_served,
        "/v1/messages",
    ),
    Case(
        "messages with a thinking budget",
        {
            "messages": HI,
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "max_tokens": 1100,
            "stop_sequences": ["e"],
        },
        is_served,
        "/v1/messages",
    ),
    Case(
        "messages with results",
        {
            "messages": [
                *HI,
                {"role": "assistant", "content": [{"type": "tool_use", "id": "a1", "name": "weather", "input": {}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a1", "content": "warm"}]},
            ],
            "tools": CLAUDE,
            "max_tokens": 8,
        },
        is_served,
        "/v1/messages",
    ),
    Case("tokens of messages", {"messages": HI, "tools": CLAUDE}, is_served, "/v1/messages/count_tokens"),
)
CASES = (
    *_BASE,
    *(streamed(case) for case in _BASE),
    *_OTHERS,
    *(
        streamed(case)
        for case in _OTHERS
        if case.path in ("/completion", "/v1/completions", "/v1/responses", "/v1/messages")
    ),
)
