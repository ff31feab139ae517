"""What is written down of a request: the access log and spans. Numbers and names; no prompt, no answer, no key."""

from __future__ import annotations

import logging
import sys
import threading
from typing import Any

import msgspec
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from stoker.errors import BackendError, ConfigError
from stoker.server.config import ServerConfig
from stoker.server.observe.access_log import bare_lines
from stoker.server.observe.tracing import open_provider
from stoker.server.transport.app import create_app
from tests.unit.server.fake_runtime import FakeRuntime, ask, make_app, registry_of, served

SECRETS = ("hunter2", "Hel", "lo!", "sk-alice")
ASKED = {"prompt": "hunter2", "n": 2}


def log_of(caplog: pytest.LogCaptureFixture, app: Any, path: str = "/v1/completions?q=hunter2", **more: Any) -> str:
    with caplog.at_level(logging.DEBUG, "stoker"):
        ask(app, "POST", path, json=ASKED, headers={"x-api-key": "sk-alice", "x-request-id": "r-1"}, **more)
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("stoker")]
    assert not any(secret in message for secret in SECRETS for message in ours)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "stoker.server.access"]
    return line


def test_json_line_of_an_answered_request(caplog: pytest.LogCaptureFixture):
    line = log_of(caplog, make_app(FakeRuntime(), log_format="json", api_key="alice:sk-alice"))
    about = msgspec.json.decode(line)
    assert about["duration_s"] >= about["ttft_s"] >= 0
    assert about["time"] > 1.6e9
    assert about["reply_id"].startswith("cmpl-")
    for varying in ("duration_s", "ttft_s", "time", "reply_id"):
        del about[varying]
    assert about == {
        "request_id": "r-1",
        "method": "POST",
        "path": "/v1/completions",
        "status": 200,
        "client": "127.0.0.1",
        "key": "alice",
        "model": "tiny",
        "prompt_tokens": 7,
        "cached_tokens": 3,
        "completion_tokens": 6,
        "finish_reasons": ["stop", "stop"],
    }


def test_json_line_of_a_refused_key(caplog: pytest.LogCaptureFixture):
    about = msgspec.json.decode(log_of(caplog, make_app(FakeRuntime(), log_format="json", api_key="other")))
    assert (about["status"], about["path"]) == (401, "/v1/completions")
    assert "model" not in about


def test_json_lines_stand_alone_on_their_line(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]):
    caplog.set_level("INFO", logger="stoker.server.access")
    app = make_app(FakeRuntime(), log_format="json")
    with bare_lines(is_json=True):
        ask(app, "GET", "/v1/models")
    assert msgspec.json.decode(capfd.readouterr().err)["path"] == "/v1/models"
    assert caplog.text == ""
    with bare_lines(is_json=False):
        ask(app, "GET", "/v1/models")
    assert '"path":"/v1/models"' in caplog.text


@pytest.mark.parametrize("given", [{}, {"x-request-id": "mine"}])
def test_a_line_of_the_log_can_be_found_by_the_id_of_the_reply(caplog: pytest.LogCaptureFixture, given: dict[str, str]):
    with caplog.at_level(logging.INFO, "stoker"):
        response = ask(make_app(FakeRuntime()), "POST", "/v1/completions", json={"prompt": "x"}, headers=given)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "stoker.server.access"]
    reply_id = response.json()["id"]
    if given:
        assert f" id=mine reply_id={reply_id} " in line
    else:
        assert reply_id == f"cmpl-{response.headers['x-request-id']}"
        assert f" id={response.headers['x-request-id']} " in line


def test_text_line_has_the_same(caplog: pytest.LogCaptureFixture):
    line = log_of(caplog, make_app(FakeRuntime(), api_key="alice:sk-alice"))
    for part in ("POST /v1/completions 200 ", " id=r-1", " key=alice", " model=tiny", " finish_reasons=stop,stop"):
        assert part in line


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_path_cannot_begin_a_line_of_its_own(log_format: str, caplog: pytest.LogCaptureFixture):
    app = make_app(FakeRuntime(), log_format=log_format)
    assert "\n" not in log_of(caplog, app, "/v1/x%0aGET%20/forged%20200")


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


def traced(spans: InMemorySpanExporter, runtime: FakeRuntime) -> Any:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return create_app(registry_of(served(runtime)), ServerConfig(), provider)


@pytest.mark.parametrize("stream", [True, False])
def test_a_span_tells_times_and_sizes_and_belongs_to_its_caller(stream: bool, spans: InMemorySpanExporter):
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    app = traced(spans, FakeRuntime())
    ask(app, "POST", "/v1/completions", json={"prompt": "hunter2", "stream": stream}, headers={"traceparent": parent})
    (span,) = spans.get_finished_spans()
    assert (span.name, span.kind) == ("POST /v1/completions", SpanKind.SERVER)
    assert span.parent is not None
    assert f"{span.parent.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    attributes = dict(span.attributes or {})
    assert attributes["http.response.status_code"] == 200
    assert attributes["gen_ai.request.model"] == "tiny"
    assert attributes["gen_ai.usage.output_tokens"] == 3
    assert attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert not any(secret in span.to_json() for secret in SECRETS)


def test_a_span_of_our_failure_is_an_error(spans: InMemorySpanExporter):
    ask(traced(spans, FakeRuntime(lambda submit: [BackendError("NaN")])), "POST", "/v1/completions", json=ASKED)
    (span,) = spans.get_finished_spans()
    assert not span.status.is_ok
    assert (span.attributes or {})["http.response.status_code"] == 500


def test_without_the_packages_the_setting_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"stoker\[otel\]"):
        open_provider("http://127.0.0.1:1/v1/traces")


def test_a_provider_is_opened_and_shut_down():
    threads = set(threading.enumerate())
    provider = open_provider("http://127.0.0.1:1/v1/traces")
    assert provider.resource.attributes["service.name"] == "stoker"
    assert len(set(threading.enumerate()) - threads) == 1, "it sends in the background"
    provider.shutdown()
    assert set(threading.enumerate()) <= threads
