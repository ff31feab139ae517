"""Probes for every honoured field of OpenAI's endpoints."""

from __future__ import annotations

from typing import Any

from starlette.types import ASGIApp

from tests.unit.server.fake_runtime import ask, events, position
from tests.unit.server.field_probes import (
    CONSTRAINED_PROBES,
    FUNCTION,
    GENERATION_PROBES,
    STREAMED_PROBES,
    TOOLS,
    TRACED_PROBES,
    EndpointProbes,
    Exchange,
    Probe,
    budgeted,
    closes_with,
    constrained,
    endpoint,
    offered,
    refused,
    rendered,
    sampled,
    submitted,
)

HI = [{"role": "user", "content": "hi"}]
USAGE = {"include_usage": True}
RUNNING = {"continuous_usage_stats": True}


def reply(exchange: Exchange) -> Any:
    return exchange.response.json()


def first_choice(exchange: Exchange) -> Any:
    return reply(exchange)["choices"][0]


def likelier_second(submit: Any) -> list[Any]:
    is_second = submit.request_id.endswith("-1")
    return [{"text": "second" if is_second else "first", "logprobs": [position("x", -1.0 if is_second else -2.0)]}]


CHAT_PROMPT = {
    "messages": Probe([{"role": "user", "content": "probe"}], lambda x: x.runtime.rendered[0][0][0].text == "probe"),
    "model": GENERATION_PROBES["model"],
    "add_generation_prompt": Probe(False, rendered("add_generation_prompt", False)),
    "continue_final_message": Probe(True, rendered("continue_final_message", True)),
    "chat_template_kwargs": Probe({"enable_thinking": False}, rendered("enable_thinking", False)),
    "reasoning_effort": Probe("low", rendered("reasoning_effort", "low")),
    "tools": Probe(TOOLS, offered),
    "tool_choice": Probe("required", refused),
    "functions": Probe([FUNCTION], offered),
    "function_call": Probe({"name": "nobody"}, refused),
}


def calls(submit: Any) -> list[Any]:
    """The answer of a model that thinks, and calls a tool twice if it may."""
    call = '<tool_call>\n{"name": "probe", "arguments": {}}\n</tool_call>'
    return [f"<think>\nwhy\n</think>\n\n{call}\n{call}"]


def can_be_ended(exchange: Exchange) -> bool:
    outline = exchange.submit.outline
    return outline is not None and outline.reasoning is not None and outline.reasoning.can_be_ended


CHAT = EndpointProbes(
    endpoint("POST", "/v1/chat/completions"),
    {"messages": HI},
    {
        **GENERATION_PROBES,
        **CONSTRAINED_PROBES,
        **STREAMED_PROBES,
        **TRACED_PROBES,
        **CHAT_PROMPT,
        "parallel_tool_calls": Probe(
            False,
            lambda x: len(first_choice(x)["message"].get("tool_calls", [])) == 1,
            beside={"tools": TOOLS},
            script=calls,
        ),
        "parse_tool_calls": Probe(
            False,
            lambda x: "tool_calls" not in first_choice(x)["message"],
            beside={"tools": TOOLS},
            script=calls,
        ),
        "reasoning_format": Probe(
            "none", lambda x: "<think>" in (first_choice(x)["message"]["content"] or ""), script=calls
        ),
        "reasoning_budget_tokens": Probe(5, budgeted(5)),
        "thinking_budget_tokens": Probe(6, budgeted(6)),
        "thinking_token_budget": Probe(7, budgeted(7)),
        "reasoning_budget_message": Probe("Enough.", closes_with("Enough.")),
        "reasoning_control": Probe(True, can_be_ended),
        "n": Probe(2, lambda x: len(x.runtime.submits) == 2 and bool(x.submit.group)),
        "stream_options": Probe(USAGE, lambda x: "usage" in events(x.response)[-2], beside={"stream": True}),
        "logprobs": Probe(True, sampled("logprobs", 0)),
        "top_logprobs": Probe(2, sampled("logprobs", 2), beside={"logprobs": True}),
    },
)

CHAT_COUNT = EndpointProbes(endpoint("POST", "/v1/chat/completions/input_tokens"), {"messages": HI}, CHAT_PROMPT)

CONTROL = EndpointProbes(
    endpoint("POST", "/v1/chat/completions/control"),
    {"id": "chatcmpl-1", "action": "reasoning_end"},
    {
        "id": Probe("chatcmpl-2", lambda x: x.runtime.ended == ["chatcmpl-2"]),
        "action": Probe("reasoning_begin", refused),
        "model": GENERATION_PROBES["model"],
    },
)

COMPLETIONS = EndpointProbes(
    endpoint("POST", "/v1/completions"),
    {"prompt": "hi"},
    {
        **GENERATION_PROBES,
        **CONSTRAINED_PROBES,
        **STREAMED_PROBES,
        **TRACED_PROBES,
        "prompt": Probe("probe", submitted("prompt", "probe")),
        "n": CHAT.probes["n"],
        "best_of": Probe(2, lambda x: first_choice(x)["text"] == "second", script=likelier_second),
        "echo": Probe(True, lambda x: first_choice(x)["text"].startswith("hi")),
        "suffix": Probe("behind", lambda x: list(x.submit.prompt) == [1, "hi", 2, "behind", 3]),
        "stream_options": Probe(RUNNING, lambda x: "usage" in events(x.response)[0], beside={"stream": True}),
        "logprobs": Probe(3, sampled("logprobs", 3)),
    },
)

RESPONSE_PROMPT = {
    "input": Probe("probe", lambda x: x.runtime.rendered[0][0][-1].text == "probe"),
    "model": GENERATION_PROBES["model"],
    "instructions": Probe("Be brief.", lambda x: x.runtime.rendered[0][0][0].text == "Be brief."),
    "previous_response_id": Probe("resp_gone", refused),
    "conversation": Probe("conv_gone", refused),
    "chat_template_kwargs": CHAT_PROMPT["chat_template_kwargs"],
    "text": Probe({"format": {"type": "nonsense"}}, refused),
    "tools": Probe([{"type": "function", **FUNCTION}], offered),
    "tool_choice": Probe("required", refused),
    "reasoning": Probe({"effort": "high"}, rendered("reasoning_effort", "high")),
}


def made_conversation(app: ASGIApp) -> dict[str, str]:
    return {"conversation_id": ask(app, "POST", "/v1/conversations", json={}).json()["id"]}


METADATA = Probe({"a": "b"}, lambda x: x.response.json()["metadata"] == {"a": "b"})
ITEM = {"role": "user", "content": "hi"}

CONVERSATIONS = (
    EndpointProbes(
        endpoint("POST", "/v1/conversations"),
        {},
        {"items": Probe([{"type": "nonsense"}], refused), "metadata": METADATA},
    ),
    EndpointProbes(
        endpoint("POST", "/v1/conversations/{conversation_id}"), {}, {"metadata": METADATA}, prepare=made_conversation
    ),
    EndpointProbes(
        endpoint("POST", "/v1/conversations/{conversation_id}/items"),
        {"items": [ITEM]},
        {"items": Probe([ITEM, ITEM], lambda x: len(x.response.json()["data"]) == 2)},
        prepare=made_conversation,
    ),
)

RESPONSES = EndpointProbes(
    endpoint("POST", "/v1/responses"),
    {"input": "hi"},
    {
        **GENERATION_PROBES,
        **RESPONSE_PROMPT,
        "parallel_tool_calls": Probe(False, lambda x: reply(x)["parallel_tool_calls"] is False),
        "text": Probe({"format": {"type": "json_object"}}, constrained("json_object")),
        "store": Probe(False, lambda x: reply(x)["store"] is False),
        "background": Probe(True, lambda x: reply(x)["status"] == "queued"),
        "metadata": Probe({"a": "b"}, lambda x: reply(x)["metadata"] == {"a": "b"}),
        "include": Probe(["message.output_text.logprobs"], sampled("logprobs", 0)),
        "top_logprobs": Probe(2, sampled("logprobs", 2)),
        "context_management": Probe(
            [{"type": "compaction", "compact_threshold": 1}],
            lambda x: reply(x)["output"][0]["type"] == "compaction",
            {"input": [ITEM, {"role": "assistant", "content": "ho"}, ITEM]},
        ),
    },
)

RESPONSES_COUNT = EndpointProbes(
    endpoint("POST", "/v1/responses/input_tokens"),
    {"input": "hi"},
    {**RESPONSE_PROMPT, "text": Probe("nonsense", refused)},
)

RESPONSES_COMPACT = EndpointProbes(
    endpoint("POST", "/v1/responses/compact"),
    {"input": "hi"},
    {
        **RESPONSE_PROMPT,
        "input": Probe("probe", lambda x: x.runtime.rendered[0][0][-2].text == "probe"),
        "chat_template_kwargs": Probe({"style": "plain"}, rendered("style", "plain")),
        "text": Probe("nonsense", refused),
    },
)

PROBES = (CHAT, CHAT_COUNT, CONTROL, COMPLETIONS, RESPONSES, RESPONSES_COUNT, RESPONSES_COMPACT, *CONVERSATIONS)
