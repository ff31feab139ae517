"""An answer that never ends, to requests of all dialects that name no length: it stops at the default, and says so."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from stoker.backends.scripted import ScriptedBackend, scripted_info
from stoker.core.params import DEFAULT_MAX_TOKENS, NO_LIMIT, SamplingParams
from stoker.core.scheduler import SchedulerConfig
from stoker.engine.engine import Engine
from stoker.engine.protocol import Accepted, Output, Submit
from tests.harness import loaded
from tests.unit.server.fake_runtime import FakeRuntime, ask, make_app

CONTEXT, DEFAULT = 200, 150
NEVER_ENDS = 97


class EndlessRuntime(FakeRuntime):
    """A real engine whose model says one letter for ever."""

    def __init__(self, defaults: SamplingParams | None = None) -> None:
        super().__init__()
        defaults = defaults or SamplingParams()
        info = scripted_info(context_size=CONTEXT)
        backend = ScriptedBackend(info, next_token=lambda entries: NEVER_ENDS)
        self.engine = Engine(loaded(backend, defaults=defaults), SchedulerConfig(max_running=1, max_waiting=1))
        sampling = SamplingParams().completed(defaults, CONTEXT)
        self.model_card = msgspec.structs.replace(self.model_card, context_size=CONTEXT, sampling=sampling)

    async def generate(self, submit: Submit) -> AsyncGenerator[Accepted | Output, None]:
        stream = self.engine.admit(submit)
        self.engine.add(stream)
        yield Accepted(submit.request_id, len(submit.prompt))
        while stream.finish_reason is None:
            for event in self.engine.step():
                assert isinstance(event, Output)
                yield event


@dataclass(frozen=True)
class Dialect:
    path: str
    body: dict[str, Any]
    word: str
    """What it calls the maximum length."""
    reason: tuple[str | int, ...]
    """Where the reply says why the answer ended."""
    length: str
    """That word, if the answer was as long as it might be."""
    count: tuple[str | int, ...]
    """Where the reply says how many tokens the answer has."""

    def asked(self, runtime: FakeRuntime, **fields: Any) -> tuple[str, int]:
        """Why the answer ended, and its tokens."""
        body = {
            **self.body,
            **{
                name: {**self.body.get(name, {}), **value} if isinstance(value, dict) else value
                for name, value in fields.items()
            },
        }
        response = ask(make_app(runtime), "POST", self.path, json=body)
        assert response.status_code == 200, response.text
        return _at(response.json(), self.reason), _at(response.json(), self.count)

    def limited(self, length: int | None) -> dict[str, Any]:
        """The field that says how long the answer may be."""
        return {"options": {self.word: length}} if "options" in self.body else {self.word: length}


def _at(reply: Any, path: tuple[str | int, ...]) -> Any:
    for key in path:
        reply = reply[key]
    return reply


MESSAGES = [{"role": "user", "content": "hi"}]
CHOICE, USAGE = ("choices", 0, "finish_reason"), ("usage", "completion_tokens")
OLLAMA: dict[str, Any] = {
    "word": "num_predict",
    "reason": ("done_reason",),
    "length": "length",
    "count": ("eval_count",),
}
DIALECTS = {
    "chat": Dialect("/v1/chat/completions", {"messages": MESSAGES}, "max_tokens", CHOICE, "length", USAGE),
    "completions": Dialect("/v1/completions", {"prompt": "hi"}, "max_tokens", CHOICE, "length", USAGE),
    "responses": Dialect(
        "/v1/responses",
        {"input": "hi", "store": False},
        "max_output_tokens",
        ("incomplete_details", "reason"),
        "max_output_tokens",
        ("usage", "output_tokens"),
    ),
    "ollama chat": Dialect(
        "/api/chat", {"model": "tiny", "messages": MESSAGES, "stream": False, "options": {}}, **OLLAMA
    ),
    "ollama text": Dialect(
        "/api/generate", {"model": "tiny", "prompt": "hi", "stream": False, "options": {}}, **OLLAMA
    ),
    "llama-server": Dialect(
        "/completion", {"prompt": "hi"}, "n_predict", ("stop_type",), "limit", ("tokens_predicted",)
    ),
    "fill in": Dialect(
        "/infill",
        {"input_prefix": "a", "input_suffix": "b"},
        "n_predict",
        ("stop_type",),
        "limit",
        ("tokens_predicted",),
    ),
}


@pytest.mark.parametrize("name", DIALECTS)
def test_an_answer_without_an_end_does_not_fill_the_context(name: str):
    dialect = DIALECTS[name]
    assert dialect.asked(EndlessRuntime()) == (dialect.length, DEFAULT)
    assert dialect.asked(EndlessRuntime(), **dialect.limited(None)) == (dialect.length, DEFAULT)


@pytest.mark.parametrize("name", DIALECTS)
def test_whoever_asks_for_no_limit_gets_the_whole_context(name: str):
    dialect = DIALECTS[name]
    reason, count = dialect.asked(EndlessRuntime(), **dialect.limited(-1))
    assert reason == dialect.length
    assert count > DEFAULT, "what the prompt leaves of it"
    assert dialect.asked(EndlessRuntime(), **dialect.limited(5)) == (dialect.length, 5)


@pytest.mark.parametrize("name", DIALECTS)
def test_an_operator_sets_another_default(name: str):
    dialect = DIALECTS[name]
    assert dialect.asked(EndlessRuntime(SamplingParams(max_tokens=7))) == (dialect.length, 7)
    reason, count = dialect.asked(EndlessRuntime(SamplingParams(max_tokens=NO_LIMIT)))
    assert (reason, count > DEFAULT) == (dialect.length, True)


def test_the_api_of_anthropic_requires_a_length():
    body = {"model": "tiny", "messages": MESSAGES}
    response = ask(make_app(EndlessRuntime()), "POST", "/v1/messages", json=body)
    assert (response.status_code, "max_tokens" in response.text) == (400, True)
    reply = ask(make_app(EndlessRuntime()), "POST", "/v1/messages", json={**body, "max_tokens": 160}).json()
    assert (reply["stop_reason"], reply["usage"]["output_tokens"]) == ("max_tokens", 160)


def test_clients_and_operators_can_see_the_default(caplog: pytest.LogCaptureFixture):
    app = make_app(EndlessRuntime())
    params = ask(app, "GET", "/props").json()["default_generation_settings"]["params"]
    assert params["max_tokens"] == DEFAULT
    with caplog.at_level(logging.INFO, "stoker.server.access"):
        ask(app, "POST", "/v1/completions", json={"prompt": "hi"})
    assert f" completion_tokens={DEFAULT} finish_reasons=length max_tokens={DEFAULT} " in caplog.text


@pytest.mark.parametrize(
    ("asked", "defaults", "context", "length"),
    [
        (None, None, 1_000_000, DEFAULT_MAX_TOKENS),
        (None, None, DEFAULT_MAX_TOKENS // 3 * 4 + 2, DEFAULT_MAX_TOKENS),
        (None, None, 8192, 6144),
        (None, None, 1, 1),
        (None, 100_000, 131_072, 100_000),
        (None, NO_LIMIT, 131_072, 131_072),
        (NO_LIMIT, 10, 131_072, 131_072),
        (100_000, None, 131_072, 100_000),
        (0, None, 131_072, 0),
    ],
)
def test_a_length_is_that_of_the_request_then_of_the_model_then_the_default(
    asked: int | None, defaults: int | None, context: int, length: int
):
    params = SamplingParams(max_tokens=asked).completed(SamplingParams(max_tokens=defaults), context)
    assert params.max_tokens == length
