"""Replies with many log-probabilities are made on a thread, so that other clients' streams go on."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from stoker.server.dialects.llamacpp.writer import LlamaCppWriter
from stoker.server.dialects.ollama.writer import OllamaWriter
from stoker.server.dialects.openai.writer import ChatWriter, CompletionWriter
from stoker.server.dialects.responses.store import ResponseStore
from stoker.server.dialects.responses.writer import ResponseWriter
from tests.unit.server.fake_runtime import FakeRuntime, ask, make_app, position

MESSAGES = [{"role": "user", "content": "hi"}]
CASES: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "/v1/chat/completions": (ChatWriter, {"messages": MESSAGES, "logprobs": True}),
    "/v1/completions": (CompletionWriter, {"prompt": "hi", "logprobs": 1}),
    "/v1/responses": (ResponseWriter, {"input": "hi", "include": ["message.output_text.logprobs"]}),
    "/completion": (LlamaCppWriter, {"prompt": "hi", "n_probs": 1}),
    "/api/chat": (OllamaWriter, {"model": "tiny", "messages": MESSAGES, "stream": False, "logprobs": True}),
}


@pytest.mark.parametrize("path", CASES)
@pytest.mark.parametrize("num_tokens", [3, 1000])
def test_a_reply_with_many_log_probabilities_is_made_on_a_thread(
    path: str, num_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, body = CASES[path]
    threads: list[int] = []
    stored: list[int] = []

    def noted(calls: list[int], function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(threading.get_ident())
            return function(*args, **kwargs)

        return call

    monkeypatch.setattr(kind, "whole", noted(threads, kind.whole))
    monkeypatch.setattr(ResponseStore, "put", noted(stored, ResponseStore.put))
    logprobs = [position("a", -0.5) for _ in range(num_tokens)]
    script = [{"text": "a" * num_tokens, "token_ids": [1] * num_tokens, "logprobs": logprobs}, ""]
    reply = ask(make_app(FakeRuntime(lambda submit: script)), "POST", path, json=body)
    assert reply.status_code == 200
    assert reply.text.count("-0.5") == num_tokens
    here = threading.get_ident()
    assert [thread == here for thread in threads] == [num_tokens < 1000]
    assert stored == ([here] if path == "/v1/responses" else []), "the store belongs to the event loop"
