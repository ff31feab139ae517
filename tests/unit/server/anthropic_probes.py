"""Probes for every honoured field of Anthropic's endpoints."""

from __future__ import annotations

from tests.unit.server.field_probes import (
    GENERATION_PROBES,
    LORA,
    SCHEMA,
    EndpointProbes,
    Probe,
    constrained,
    endpoint,
    offered,
    refused,
    rendered,
    sampled,
    submitted,
)

PROMPT = {
    "messages": Probe([{"role": "user", "content": "probe"}], lambda x: x.runtime.rendered[0][0][-1].text == "probe"),
    "model": GENERATION_PROBES["model"],
    "output_config": Probe({"effort": "low"}, rendered("reasoning_effort", "low")),
    "tools": Probe([{"name": "probe", "input_schema": SCHEMA}], offered),
    "tool_choice": Probe({"type": "any"}, refused),
    "thinking": Probe({"type": "enabled", "budget_tokens": 5}, rendered("enable_thinking", True)),
    "system": Probe("Be brief.", lambda x: x.runtime.rendered[0][0][0].text == "Be brief."),
}

MESSAGES = EndpointProbes(
    endpoint("POST", "/v1/messages"),
    {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9},
    {
        **PROMPT,
        "max_tokens": Probe(5, sampled("max_tokens", 5)),
        "stream": GENERATION_PROBES["stream"],
        "stop_sequences": Probe(["a"], sampled("stop_strings", ("a",))),
        "temperature": Probe(0, sampled("temperature", 0)),
        "top_k": Probe(3, sampled("top_k", 3)),
        "top_p": Probe(0.5, sampled("top_p", 0.5)),
        "cache_prompt": GENERATION_PROBES["cache_prompt"],
        "session_id": GENERATION_PROBES["session_id"],
        "lora": LORA,
        "output_format": Probe({"type": "json_schema", "schema": SCHEMA}, constrained("json_schema")),
        "metadata": Probe({"user_id": "u1"}, submitted("client_key", "u1")),
    },
)

COUNT_TOKENS = EndpointProbes(
    endpoint("POST", "/v1/messages/count_tokens"), {"messages": [{"role": "user", "content": "hi"}]}, PROMPT
)

PROBES = (MESSAGES, COUNT_TOKENS)
