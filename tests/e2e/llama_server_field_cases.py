"""Requests with one field or one form each of llama-server's other endpoints, and of what clients of it rely on."""

from __future__ import annotations

from typing import Any

from tests.e2e.llama_server_cases import CALL, CHAT, CLAUDE, HI, TOOLS, Case, message, streamed

_LIMIT = {"seed": 1, "temperature": 0.5}


def completion(name: str, **fields: Any) -> Case:
    return Case(f"completion: {name}", {"prompt": "Once upon", "n_predict": 4, **_LIMIT, **fields}, path="/completion")


def completions(name: str, **fields: Any) -> Case:
    body = {"prompt": "Once upon", "max_tokens": 4, **_LIMIT, **fields}
    return Case(f"completions: {name}", body, path="/v1/completions")


def chat(name: str, **fields: Any) -> Case:
    return Case(f"chat: {name}", {"messages": HI, "max_tokens": 4, **_LIMIT, **fields})


def messages(name: str, **fields: Any) -> Case:
    body = {"messages": HI, "max_tokens": 4, "model": "claude", **fields}
    return Case(f"messages: {name}", body, path="/v1/messages")


def responses(name: str, **fields: Any) -> Case:
    return Case(f"responses: {name}", {"input": "Hi.", "max_output_tokens": 4, **fields}, path="/v1/responses")


def get(path: str) -> Case:
    return Case(f"GET {path}", None, path=path)


_SAMPLING: dict[str, Any] = {
    "temperature 0": {"temperature": 0},
    "temperature -1": {"temperature": -1},
    "dynatemp": {"dynatemp_range": 0.5, "dynatemp_exponent": 1.2},
    "top_k": {"top_k": 5},
    "top_k 0": {"top_k": 0},
    "top_k -1": {"top_k": -1},
    "top_p": {"top_p": 0.5},
    "top_p 0": {"top_p": 0},
    "min_p": {"min_p": 0.1},
    "typical_p": {"typical_p": 0.9},
    "top_n_sigma": {"top_n_sigma": 1.0},
    "xtc": {"xtc_probability": 0.5, "xtc_threshold": 0.1},
    "dry": {"dry_multiplier": 0.8, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": 64},
    "dry breakers": {"dry_multiplier": 0.8, "dry_sequence_breakers": ["\n", ":"]},
    "penalties": {"repeat_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.5, "repeat_last_n": 32},
    "repeat_last_n 0": {"repeat_penalty": 1.1, "repeat_last_n": 0},
    "mirostat": {"mirostat": 2, "mirostat_tau": 4.0, "mirostat_eta": 0.2},
    "mirostat 1": {"mirostat": 1},
    "seed -1": {"seed": -1},
    "ignore_eos": {"ignore_eos": True},
    "logit_bias object": {"logit_bias": {"15": 1}},
    "logit_bias list": {"logit_bias": [[15, 0.5], ["Hello", -0.5], [16, False]]},
    "samplers": {"samplers": ["top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]},
    "samplers as letters": {"samplers": "kypmxt"},
    "other order of samplers": {"samplers": ["temperature", "top_k"]},
    "min_keep": {"min_keep": 2},
    "adaptive": {"adaptive_target": -1, "adaptive_decay": 0.9},
    "stop a text": {"stop": "x"},
    "stop a list": {"stop": ["x", "yz"]},
    "stop an empty list": {"stop": []},
    "stop null": {"stop": None},
    "stop an empty text": {"stop": ["", "x"]},
    "everything null": {"temperature": None, "top_p": None, "stream": None, "seed": None},
    "unknown field": {"frobnicate": 3},
    "cache_prompt": {"cache_prompt": False},
    "id_slot": {"id_slot": 0},
    "n_keep": {"n_keep": -1, "n_discard": 0},
    "n_cache_reuse": {"n_cache_reuse": 16},
    "lora": {"lora": []},
    "speculative": {"speculative.n_max": 4, "speculative.n_min": 0, "speculative.p_min": 0.5},
    "timings_per_token": {"timings_per_token": True},
    "return_progress": {"return_progress": True},
    "sse_ping_interval": {"sse_ping_interval": 5},
    "backend_sampling": {"backend_sampling": False},
    "t_max_predict_ms": {"t_max_predict_ms": 60000},
    "t_max_prompt_ms": {"t_max_prompt_ms": 60000},
}
_COMPLETION: dict[str, Any] = {
    "a list of prompts": {"prompt": ["Once", "Twice"]},
    "token ids": {"prompt": [12, 34, 56]},
    "token ids and texts": {"prompt": [12, "string", 34]},
    "lists of token ids": {"prompt": [[12, 34], [56, "and", 7]]},
    "an object": {"prompt": {"prompt_string": "Once"}},
    "several kinds of prompts": {"prompt": ["Once", {"prompt_string": "Twice"}, [12, 34]]},
    "no tokens": {"n_predict": 0},
    "n_predict -1": {"n_predict": -1, "stop": ["e", "a", "t", " "]},
    "n_probs": {"n_probs": 3},
    "n_probs behind the stages": {"n_probs": 3, "post_sampling_probs": True},
    "return_tokens": {"return_tokens": True},
    "response_fields": {"response_fields": ["content", "timings/prompt_n", "generation_settings/n_predict"]},
    "n_indent": {"n_indent": 2},
    "n_cmpl": {"n_cmpl": 2},
    "json_schema": {"json_schema": {"type": "integer"}},
    "empty json_schema": {"json_schema": {}},
    "grammar": {"grammar": 'root ::= "a" | "b"'},
    "empty grammar": {"grammar": ""},
    "lazy grammar": {"grammar": 'root ::= "a"', "grammar_lazy": False, "grammar_triggers": []},
    "max_tokens": {"max_tokens": 3, "n_predict": None},
    "two limits": {"max_tokens": 3},
}
_COMPLETIONS: dict[str, Any] = {
    "a list of prompts": {"prompt": ["Once", "Twice"]},
    "token ids": {"prompt": [12, 34, 56]},
    "n": {"n": 2},
    "logprobs": {"logprobs": 3},
    "logprobs 0": {"logprobs": 0},
    "echo off": {"echo": False},
    "n_probs": {"n_probs": 3},
    "user": {"user": "me", "model": "gpt-4"},
    "n_predict": {"n_predict": 3, "max_tokens": None},
    "max_tokens -1": {"max_tokens": -1, "stop": ["e", "a", "t", " "]},
    "stream_options": {"stream": True, "stream_options": {"include_usage": True}},
    "response_format": {"response_format": {"type": "json_object"}},
}
_CHAT: dict[str, Any] = {
    "system and developer": {
        "messages": [{"role": "system", "content": "a"}, {"role": "developer", "content": "b"}, *HI]
    },
    "two users in a row": {"messages": [*HI, *HI]},
    "the assistant comes first": {"messages": [{"role": "assistant", "content": "Hi."}, *HI]},
    "content null": {"messages": [*HI, {"role": "assistant", "content": None, "tool_calls": [CALL]}, *HI]},
    "content missing": {"messages": [*HI, {"role": "assistant", "tool_calls": [CALL]}, *HI], "tools": TOOLS},
    "parts of an assistant": {
        "messages": [*HI, {"role": "assistant", "content": [{"type": "text", "text": "x"}]}, *HI]
    },
    "several parts": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    },
    "arguments as an object": {
        "messages": [
            *HI,
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{**CALL, "function": {"name": "weather", "arguments": {"city": "Paris"}}}],
            },
            {"role": "tool", "tool_call_id": "a1", "content": "warm"},
        ]
    },
    "a result without an id": {
        "messages": [
            *HI,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "content": "w"},
        ]
    },
    "a result with a name": {
        "messages": [
            *HI,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "name": "weather", "tool_call_id": "a1", "content": [{"type": "text", "text": "warm"}]},
        ]
    },
    "a name of a user": {"messages": [{"role": "user", "name": "Ann", "content": "Hi."}]},
    "the assistant comes last": {"messages": [*HI, {"role": "assistant", "content": "It is"}]},
    "empty text": {"messages": [{"role": "user", "content": ""}]},
    "max_completion_tokens": {"max_completion_tokens": 3},
    "max_tokens null": {"max_tokens": None, "n_predict": 3},
    "top_logprobs": {"logprobs": True, "top_logprobs": 5},
    "logprobs without a number": {"logprobs": True},
    "logprobs false": {"logprobs": False},
    "include_usage": {"stream": True, "stream_options": {"include_usage": True}},
    "any model": {"model": "gpt-4o-mini"},
    "user, store and metadata": {"user": "me", "store": False, "metadata": {}, "service_tier": "auto"},
    "prompt_cache_key": {"prompt_cache_key": "k", "verbosity": "low"},
    "tools null": {"tools": None, "tool_choice": None},
    "tools empty": {"tools": []},
    "functions": {"functions": []},
    "named tool": {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "weather"}}},
    "modalities": {"modalities": ["text"]},
    "chat_template_kwargs": {"chat_template_kwargs": {"enable_thinking": False, "other": 1}},
    "add_generation_prompt": {"add_generation_prompt": True},
    "reasoning_format": {"reasoning_format": "deepseek", "reasoning_in_content": False},
    "response_format null": {"response_format": None},
    "a schema with uniqueItems": {
        "response_format": {"type": "json_object", "schema": {"type": "array", "uniqueItems": True}}
    },
    "a schema that is a number": {"response_format": {"type": "json_object", "schema": 123}},
    "post_sampling_probs": {"logprobs": True, "top_logprobs": 2, "post_sampling_probs": True},
}
_MESSAGES: dict[str, Any] = {
    "system as a text": {"system": "Be short."},
    "system in blocks": {"system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]},
    "content in blocks": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi."}]}]},
    "sampling": {"temperature": 0.5, "top_k": 5, "top_p": 0.9},
    "stop_sequences": {"stop_sequences": ["x"]},
    "metadata": {"metadata": {"user_id": "me"}},
    "tool_choice none": {"tools": CLAUDE, "tool_choice": {"type": "none"}},
    "tool_choice auto": {"tools": CLAUDE, "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    "thinking disabled": {"thinking": {"type": "disabled"}},
    "the assistant comes last": {"messages": [*HI, {"role": "assistant", "content": "It is"}]},
    "thinking in the history": {
        "messages": [
            *HI,
            {
                "role": "assistant",
                "content": [{"type": "thinking", "thinking": "y", "signature": ""}, {"type": "text", "text": "x"}],
            },
            *HI,
        ]
    },
    "a result with an error": {
        "messages": [
            *HI,
            {"role": "assistant", "content": [{"type": "tool_use", "id": "a1", "name": "weather", "input": {}}]},
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "a1",
                        "is_error": True,
                        "content": [{"type": "text", "text": "x"}],
                    },
                    {"type": "text", "text": "And?"},
                ],
            },
        ]
    },
    "no messages": {"messages": []},
}
_RESPONSES: dict[str, Any] = {
    "instructions": {"instructions": "Be short."},
    "messages": {"input": HI},
    "parts": {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi."}]}]},
    "an answer in the history": {
        "input": [
            *HI,
            {
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "id": "msg_1",
                "content": [{"type": "output_text", "text": "x", "annotations": []}],
            },
            *HI,
        ]
    },
    "sampling": {"temperature": 0.5, "top_p": 0.9},
    "store off": {"store": False, "parallel_tool_calls": True, "truncation": "disabled", "metadata": {}},
    "text": {"text": {"format": {"type": "text"}}},
}
_OTHERS = (
    *(get(path) for path in ("/health", "/v1/health", "/models", "/v1/models", "/props", "/slots", "/lora-adapters")),
    *(get(path) for path in ("/metrics", "/slots?fail_on_no_slot=0")),
    Case("tokenize", {"content": "Hello, 世界"}, lambda reply: bool(reply["tokens"]), "/tokenize"),
    Case("tokenize with pieces", {"content": "Hello, 世界", "with_pieces": True}, path="/tokenize"),
    Case("tokenize as a prompt", {"content": "x", "add_special": True, "parse_special": False}, path="/tokenize"),
    Case("tokenize a mix", {"content": ["x", 12, "y"]}, path="/tokenize"),
    Case("tokenize nothing", {}, path="/tokenize"),
    Case("detokenize", {"tokens": [12, 34]}, lambda reply: isinstance(reply["content"], str), "/detokenize"),
    Case("detokenize nothing", {"tokens": []}, path="/detokenize"),
    Case("template", {"messages": HI, "chat_template_kwargs": {"enable_thinking": False}}, path="/apply-template"),
    Case("template of a history", {"messages": [*HI, {"role": "assistant", "content": "x"}]}, path="/apply-template"),
    Case("tokens of a chat", {"messages": HI}, path=f"{CHAT}/input_tokens"),
    Case("adapters", [], path="/lora-adapters"),
    Case("chat below another path", {"messages": HI, "max_tokens": 4}, message, "/chat/completions"),
    Case("completions below another path", {"prompt": "x", "n_predict": 4}, path="/completions"),
    Case("messages with a query", {"messages": HI, "max_tokens": 4}, path="/v1/messages?beta=true"),
)
_TEXTS = (
    *(completion(name, **fields) for name, fields in (_SAMPLING | _COMPLETION).items()),
    *(completions(name, **fields) for name, fields in (_SAMPLING | _COMPLETIONS).items()),
    *(chat(name, **fields) for name, fields in (_SAMPLING | _CHAT).items()),
    *(messages(name, **fields) for name, fields in _MESSAGES.items()),
    *(responses(name, **fields) for name, fields in _RESPONSES.items()),
)
FIELD_CASES = (*_TEXTS, *(streamed(case) for case in _TEXTS if not case.body.get("stream")), *_OTHERS)
