"""What an answer has cost is the same number whether it was streamed or not, in every dialect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.unit.server.fake_runtime import FakeRuntime, ask, make_app
from tests.unit.server.test_disconnect import BODIES

Counts = Callable[[Any], tuple[int, ...]]


def openai(reply: Any) -> tuple[int, ...]:
    usage = reply["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], usage["completion_tokens"]


def responses(event: Any) -> tuple[int, ...]:
    usage = event.get("response", event)["usage"]
    return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"], usage["output_tokens"]


def anthropic(event: Any) -> tuple[int, ...]:
    usage = event["usage"]
    cached = usage["cache_read_input_tokens"]
    return usage["input_tokens"] + cached, cached, usage["output_tokens"]


def ollama(reply: Any) -> tuple[int, ...]:
    return reply["prompt_eval_count"], reply["eval_count"]


def native(reply: Any) -> tuple[int, ...]:
    return reply["tokens_evaluated"], reply["tokens_cached"], reply["tokens_predicted"]


COUNTS: dict[str, Counts] = {
    "/v1/chat/completions": openai,
    "/v1/completions": openai,
    "/v1/responses": responses,
    "/v1/messages": anthropic,
    "/api/generate": ollama,
    "/api/chat": ollama,
    "/completion": native,
    "/infill": native,
}


def last_counts(text: str, counts: Counts) -> tuple[int, ...]:
    """Of the last event of a stream that has any."""
    lines = [line.removeprefix("data: ") for line in text.splitlines()]
    events = [msgspec.json.decode(line) for line in lines if line.startswith("{")]
    for event in reversed(events):
        try:
            return counts(event)
        except (KeyError, TypeError):
            continue
    raise AssertionError(text)


@pytest.mark.parametrize("path", BODIES)
def test_streamed_or_not_it_costs_the_same(path: str):
    app = make_app(FakeRuntime())
    whole = ask(app, "POST", path, json={**BODIES[path], "stream": False}).json()
    body = {**BODIES[path], "stream": True}
    if path in ("/v1/chat/completions", "/v1/completions"):
        body["stream_options"] = {"include_usage": True}
    streamed = ask(app, "POST", path, json=body).text
    assert last_counts(streamed, COUNTS[path]) == COUNTS[path](whole)
    assert COUNTS[path](whole)[-1] == 3
    if COUNTS[path] is not ollama:
        assert COUNTS[path](whole)[1] == 3, "what the cache gave"
