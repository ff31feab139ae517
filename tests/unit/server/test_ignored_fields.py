"""Fields of a request that have no effect: its reply names them, the log does once, and a strict server refuses."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from stoker.server import fields
from tests.unit.server.fake_runtime import FakeRuntime, ask, make_app

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture(autouse=True)
def nothing_was_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields, "_logged_unknown", set[str]())


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/v1/chat/completions", {**CHAT, "temprature": 0}, "temprature"),
        ("/v1/chat/completions", {**CHAT, "temprature": 0, "stream": True}, "temprature"),
        ("/v1/chat/completions", {**CHAT, "temprature": 0, "store": True}, "temprature, store"),
        ("/v1/chat/completions", {**CHAT, "temprature": None}, None),
        ("/v1/chat/completions", {**CHAT, "a\r\nb": 1}, None),
        ("/v1/completions", {"prompt": "Hi", "x": 1}, "x"),
        ("/api/chat", {**CHAT, "options": {"num_predict": 3, "num_thred": 1}}, "options.num_thred"),
    ],
)
def test_a_reply_names_what_had_no_effect(path: str, body: dict[str, Any], named: str | None) -> None:
    response = ask(make_app(FakeRuntime()), "POST", path, json=body)
    assert response.status_code == 200
    assert response.headers.get("x-stoker-ignored") == named


def test_an_unknown_field_is_logged_once_with_what_may_be_meant(caplog: pytest.LogCaptureFixture) -> None:
    app = make_app(FakeRuntime())
    for _ in range(2):
        ask(app, "POST", "/v1/chat/completions", json={**CHAT, "temprature": 0})
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.getMessage() == "ignoring the unknown request field 'temprature'; did you mean `temperature`?"


def test_a_strict_server_refuses_unknown_fields_and_takes_known_ones() -> None:
    app = make_app(FakeRuntime(), strict_fields=True)
    refused = ask(app, "POST", "/v1/chat/completions", json={**CHAT, "temprature": 0})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "temprature"
    assert "did you mean `temperature`?" in refused.json()["error"]["message"]
    assert ask(app, "POST", "/v1/chat/completions", json={**CHAT, "store": True}).status_code == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/api/chat"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_names_what_of_a_schema_is_not_enforced(path: str, stream: bool) -> None:
    runtime = FakeRuntime()
    runtime.relaxed = ("`not` at `/a`: it is\r\ntoo much", "`é` at `/`", "x" * 3000)
    body = {**CHAT, "max_tokens": 5, "stream": stream}
    headers = ask(make_app(runtime), "POST", path, json=body).headers
    assert headers["stoker-relaxed"].startswith(r"`not` at `/a`: it is too much; `\xe9` at `/`; xxx")
    assert len(headers["stoker-relaxed"]) < 2100
    assert "stoker-relaxed" not in ask(make_app(FakeRuntime()), "POST", path, json=body).headers
