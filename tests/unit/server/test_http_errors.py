import gzip
import logging

import pytest

import stoker
from stoker.engine.health import Health
from stoker.errors import (
    BackendError,
    Cancelled,
    ContextLengthExceeded,
    EngineCrashed,
    InvalidInput,
    ModelNotLoaded,
    Overloaded,
    ResourceExhausted,
    StokerError,
    TemplateError,
    Timeout,
    UnsupportedParameter,
    UnsupportedSchema,
)
from tests.unit.server.fake_runtime import FakeRuntime, ask, chat, complete, make_app

TOO_LONG = ContextLengthExceeded(
    "This model's maximum context length is 8 tokens, but the prompt has 9 tokens: "
    "the request exceeds the available context size.",
    num_prompt_tokens=9,
    context_size=8,
)


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (InvalidInput("x", parameter="top_p"), 400, "invalid_request_error"),
        (UnsupportedParameter("x"), 400, "invalid_request_error"),
        (TemplateError("x"), 400, "invalid_request_error"),
        (TOO_LONG, 400, "exceed_context_size_error"),
        (Overloaded("x", retry_after_s=3.2), 429, "rate_limit_exceeded"),
        (ModelNotLoaded("x"), 503, "unavailable_error"),
        (EngineCrashed("x"), 503, "unavailable_error"),
        (ResourceExhausted("x"), 429, "unavailable_error"),
        (Timeout("x"), 504, "timeout_error"),
        (BackendError("x"), 500, "server_error"),
        (StokerError("x"), 500, "server_error"),
        (Cancelled("x"), 499, "cancelled"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_refusal_comes_before_the_stream_opens(error: StokerError, status: int, kind: str, stream: bool):
    runtime = FakeRuntime()
    runtime.refuse = lambda submit: error
    response = chat(runtime, stream=stream)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    body = response.json()["error"]
    assert body["message"] == error.message
    assert (body["type"], body["code"]) == (kind, error.code)
    assert body["param"] == error.fields.get("parameter")
    assert ("retry-after" in response.headers) == (status in (429, 503))
    assert response.headers.get("x-should-retry") == ("false" if status == 504 else None)
    assert runtime.held == set()


def test_the_place_of_a_keyword_that_cannot_be_enforced_is_the_parameter():
    runtime = FakeRuntime()
    fields = {"pointer": "/properties/a", "keyword": "contains", "reason": "x"}
    runtime.refuse = lambda submit: UnsupportedSchema("`contains` at `/properties/a`: x", **fields)
    error = chat(runtime).json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_schema", "/properties/a")


def test_retry_after_is_a_whole_number_of_seconds():
    runtime = FakeRuntime()
    runtime.refuse = lambda submit: Overloaded("full", retry_after_s=3.2)
    assert chat(runtime).headers["retry-after"] == "4"


def test_prompt_that_is_too_long_has_what_agents_look_for():
    runtime = FakeRuntime()
    runtime.refuse = lambda submit: TOO_LONG
    error = chat(runtime).json()["error"]
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (9, 8)
    assert error["code"] == "context_length_exceeded"
    assert "maximum context length" in error["message"]
    assert "exceeds the available context size" in error["message"]


def test_refusal_of_one_choice_ends_those_already_accepted():
    runtime = FakeRuntime()
    runtime.refuse = lambda submit: Overloaded("full") if submit.request_id.endswith("-2") else None
    assert chat(runtime, n=4, stream=True).status_code == 429
    assert runtime.held == set()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b'{"prompt": "\xff"}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"prompt": "\\ud800"}',
        b"{} {}",
    ],
)
def test_body_that_is_no_json_object(body: bytes):
    response = ask(make_app(FakeRuntime()), "POST", "/v1/completions", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_empty_body_is_called_empty():
    response = ask(make_app(FakeRuntime()), "POST", "/v1/completions", content=b" \n")
    assert (response.status_code, "is empty" in response.json()["error"]["message"]) == (400, True)


@pytest.mark.parametrize("headers", [{}, {"transfer-encoding": "chunked"}])
def test_body_that_is_too_large(headers: dict[str, str]):
    app = make_app(FakeRuntime(), max_body_bytes=100)
    content = b'{"prompt": "' + b"x" * 100 + b'"}'
    if headers:

        async def parts():
            for begin in range(0, len(content), 30):
                yield content[begin : begin + 30]

        response = ask(app, "POST", "/v1/completions", content=parts(), headers=headers)
    else:
        response = ask(app, "POST", "/v1/completions", content=content)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "request_too_large"


def test_unknown_path_and_wrong_method_have_the_shape():
    app = make_app(FakeRuntime())
    missing = ask(app, "GET", "/v1/nothing")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    assert missing.json()["error"]["message"].startswith("GET /v1/nothing: unknown endpoint")
    wrong = ask(app, "GET", "/v1/completions")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert "POST" in wrong.headers["allow"]
    assert "use POST" in wrong.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/v1/v1/messages", "leave `/v1` out"),
        ("/v1/api/chat", "leave `/v1` out"),
        ("/api/api/chat", "leave `/api` out"),
        ("//v1/chat/completions", "one slash too many"),
        ("/v1/chat/completions/chat/completions", "leave `/chat/completions` out"),
        ("/v1/chat/completions/models", "leave `/chat/completions` out"),
        ("/v1/messages/v1/messages", "leave `/v1/messages` out"),
        ("/v1/nothing", ""),
    ],
)
def test_path_of_a_wrong_base_url_says_what_is_wrong(path: str, hint: str):
    response = ask(make_app(FakeRuntime()), "POST", f"http://localhost{path}", json={})
    assert response.status_code == 404
    assert hint in response.text
    assert ("base URL" in response.text) == bool(hint)


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/v1/model", "/v1/models"),
        ("/generate", "/api/generate"),
        ("/v1/nothing", None),
    ],
)
def test_unknown_path_that_is_like_an_endpoint_names_it(path: str, meant: str | None):
    message = str(ask(make_app(FakeRuntime()), "POST", path, json={}).json()["error"])
    assert ("did you mean" in message) == (meant is not None)
    assert meant is None or f"did you mean `{meant}`?" in message


@pytest.mark.parametrize(
    ("path", "reason"),
    [("/api/blobs/sha256:0123", "files are not uploaded"), ("/api/push", "not uploaded to a registry")],
)
def test_upload_is_refused_with_its_reason(path: str, reason: str):
    response = ask(make_app(FakeRuntime()), "POST", path, json={})
    assert (response.status_code, reason in response.json()["error"]) == (404, True)


@pytest.mark.parametrize("stream", [False, True])
def test_bug_before_the_response_is_500_and_keeps_the_prompt_out_of_the_log(
    stream: bool, caplog: pytest.LogCaptureFixture
):
    runtime = FakeRuntime()
    runtime.refuse = lambda submit: ZeroDivisionError(submit.prompt)
    app = make_app(runtime)
    body = {"prompt": "very secret", "stream": stream}
    with caplog.at_level(logging.DEBUG):
        response = ask(app, "POST", "/v1/completions", json=body, headers={"x-request-id": "id-7"})
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"
    assert "secret" not in response.text
    assert "ZeroDivisionError" in caplog.text
    assert "id-7" in caplog.text
    assert "secret" not in caplog.text


def test_bug_in_the_middle_of_a_stream_is_an_error_event():
    runtime = FakeRuntime(lambda submit: ["a", ZeroDivisionError("secret")])
    response = complete(runtime, stream=True)
    *_, last, rest = response.text.split("\n\n")
    assert rest == ""
    assert last.startswith('data: {"error":')
    assert "internal_error" in last
    assert "[DONE]" not in response.text
    assert "secret" not in response.text


def test_request_id_is_taken_or_made():
    app = make_app(FakeRuntime())
    assert ask(app, "GET", "/health", headers={"x-request-id": "mine"}).headers["x-request-id"] == "mine"
    made = {ask(app, "GET", "/health").headers["x-request-id"] for _ in range(3)}
    assert len(made) == 3
    for bad in ("a b", "x" * 129, "é"):
        response = ask(app, "GET", "/health", headers={"x-request-id": bad.encode()})
        assert response.headers["x-request-id"] != bad


def test_access_log_has_one_line_without_the_query(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, logger="stoker.server.access"):
        ask(make_app(FakeRuntime()), "GET", "/health?key=secret", headers={"x-request-id": "r1"})
    (record,) = [r for r in caplog.records if r.name == "stoker.server.access"]
    assert record.getMessage().startswith("GET /health 200 ")
    assert record.getMessage().endswith("id=r1")


def test_long_names_are_not_echoed_whole():
    app = make_app(FakeRuntime(), strict=True)
    response = ask(app, "POST", "/v1/completions", json={"prompt": "x", "model": "m" * 1_000_000})
    assert response.status_code == 404
    assert len(response.content) < 10_000


def test_the_version_is_that_of_the_package():
    assert ask(make_app(FakeRuntime()), "GET", "/version").json() == {"version": stoker.__version__}


def test_health_tells_when_a_model_is_not_ready():
    runtime = FakeRuntime()
    app = make_app(runtime)
    for path in ("/health", "/v1/health", "/ping"):
        response = ask(app, "GET", path)
        assert (response.status_code, response.json()["status"]) == (200, "ok")
    runtime.state = Health(is_ready=True, state="ready", num_restarts=1, last_error="killed")
    assert "last_error" not in ask(app, "GET", "/health").json()["models"][0], "it is over"
    runtime.state = Health(is_ready=False, state="restarting", num_restarts=2, last_error="killed")
    response = ask(app, "GET", "/health")
    assert response.status_code == 503
    assert "retry-after" in response.headers
    assert response.json()["status"] == "restarting"
    model = response.json()["models"][0]
    assert (model["num_restarts"], model["last_error"]) == (2, "killed")
    assert "killed" in response.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/completions", "/api/generate", "/v1/messages"])
def test_compressed_body_is_refused_by_name(path: str):
    body = gzip.compress(b'{"prompt": "hi"}')
    response = ask(make_app(FakeRuntime()), "POST", path, content=body, headers={"content-encoding": "gzip"})
    assert response.status_code == 415
    assert "must not be compressed" in response.text


def test_body_that_begins_with_a_byte_order_mark_is_read():
    body = b'\xef\xbb\xbf{"prompt": "hi"}'
    plain = ask(
        make_app(FakeRuntime()), "POST", "/v1/completions", content=body, headers={"content-encoding": "identity"}
    )
    assert plain.status_code == 200
