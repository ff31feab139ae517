"""Errors as clients see them: the only place that maps exceptions to HTTP statuses and to OpenAI's error types."""

from __future__ import annotations

from difflib import get_close_matches
from math import ceil

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope

from stoker.errors import (
    AdapterNotFound,
    AuthenticationFailed,
    BackendError,
    BatchNotFound,
    Cancelled,
    ContextLengthExceeded,
    ConversationNotFound,
    DownloadFailed,
    EngineCrashed,
    FileNotStored,
    InvalidInput,
    MediaCrashed,
    ModelFileNotFound,
    ModelNotFound,
    ModelNotLoaded,
    Overloaded,
    PermissionDenied,
    ResourceExhausted,
    ResponseNotFound,
    SessionNotFound,
    StokerError,
    Timeout,
)
from stoker.server.error_shapes import error_format
from stoker.server.error_types import ErrorBody, ErrorDetail

CLIENT_LEFT = 499
"""nginx's status for a client that closed the connection; it appears only in logs and metrics."""

_RETRY_AFTER_S = 2.0

_MAX_MESSAGE_CHARS = 4000
"""Maximum length of a message in a reply, because messages quote input of clients, which may be large."""

_STATUS: dict[type[StokerError], tuple[int, str]] = {
    StokerError: (500, "server_error"),
    InvalidInput: (400, "invalid_request_error"),
    MediaCrashed: (422, "invalid_request_error"),
    ContextLengthExceeded: (400, "exceed_context_size_error"),
    ModelNotFound: (404, "invalid_request_error"),
    AdapterNotFound: (404, "invalid_request_error"),
    ModelFileNotFound: (404, "invalid_request_error"),
    DownloadFailed: (502, "server_error"),
    ConversationNotFound: (404, "invalid_request_error"),
    ResponseNotFound: (404, "invalid_request_error"),
    FileNotStored: (404, "invalid_request_error"),
    BatchNotFound: (404, "invalid_request_error"),
    SessionNotFound: (404, "invalid_request_error"),
    AuthenticationFailed: (401, "authentication_error"),
    PermissionDenied: (403, "permission_error"),
    ModelNotLoaded: (503, "unavailable_error"),
    EngineCrashed: (503, "unavailable_error"),
    ResourceExhausted: (429, "unavailable_error"),
    Overloaded: (429, "rate_limit_exceeded"),
    Timeout: (504, "timeout_error"),
    Cancelled: (CLIENT_LEFT, "cancelled"),
    BackendError: (500, "server_error"),
}

_NO_ENDPOINT = "unknown endpoint; see GET /openapi.json"

_SIMILAR = 0.8
"""Similarity of an unknown path and an endpoint from which the error names the endpoint."""

_HINTS = {
    "/v1/v1/": "leave `/v1` out of the client's base URL: it adds it by itself",
    "/v1/api/": "leave `/v1` out of the client's base URL: Ollama's API has none",
    "/api/api/": "leave `/api` out of the client's base URL: it adds it by itself",
    "//": "the client's base URL ends with one slash too many",
    "/completions/chat/": "leave `/chat/completions` out of the client's base URL: it adds it by itself",
    "/completions/models": "leave `/chat/completions` out of the client's base URL: it adds the path by itself",
    "/messages/v1/": "leave `/v1/messages` out of the client's base URL: it adds it by itself",
    "/api/blobs/": "files are not uploaded; put them on the server, and use `stoker create` there",
    "/api/push": "models are not uploaded to a registry",
}
"""Hints for unknown paths, by a part of the path: usually the client's base URL is wrong."""

_HTTP_CODES = {
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "request_too_large",
    415: "unsupported_encoding",
}


def status_of(error: StokerError) -> int:
    """The HTTP status of an error: that of the class or its nearest ancestor in the table."""
    return _entry(error)[0]


def error_body(error: StokerError) -> ErrorBody:
    """The JSON of an error in OpenAI's shape, for a response or for an event in a stream."""
    parameter = error.fields.get("parameter", error.fields.get("pointer"))
    detail = ErrorDetail(
        message=error.message[:_MAX_MESSAGE_CHARS],
        type=_entry(error)[1],
        param=None if parameter is None else str(parameter),
        code=error.code,
    )
    if isinstance(error, ContextLengthExceeded):
        detail = msgspec.structs.replace(
            detail,
            n_prompt_tokens=int(error.fields["num_prompt_tokens"] or 0),
            n_ctx=int(error.fields["context_size"] or 0),
        )
    return ErrorBody(detail)


def error_response(error: StokerError, scope: Scope) -> Response:
    """The response for an error, in the client's dialect. With status 429 or 503 it has a `Retry-After`."""
    status = status_of(error)
    headers = {"Retry-After": str(_retry_after_s(error))} if status in (429, 503) else {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, Timeout):
        headers["x-should-retry"] = "false"  # OpenAI's and Anthropic's clients would retry twice, each for as long
    return _dialect_response(scope, status, error_body(error).error, headers)


def error_event(error: StokerError, scope: Scope) -> bytes:
    """The last bytes of a stream that failed, in the client's dialect."""
    return error_format(scope).event(status_of(error), error_body(error).error, request_id(scope))


def json_response(body: object, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers, "application/json")


def internal_error_body() -> ErrorBody:
    """The error for an internal bug; it reveals nothing about the bug to the client."""
    return ErrorBody(ErrorDetail("internal error; the server's log says more", "server_error", None, "internal_error"))


def request_id(scope: Scope) -> str:
    """The id of the HTTP request; empty outside of `RequestBorder`."""
    return scope.get("state", {}).get("request_id", "")


async def on_stoker_error(request: Request, error: Exception) -> Response:
    """Starlette's exception handler for `StokerError`."""
    assert isinstance(error, StokerError)
    return error_response(error, request.scope)


async def on_http_error(request: Request, error: Exception) -> Response:
    """Starlette's exception handler for protocol errors: unknown paths, wrong methods, bodies that are too large."""
    assert isinstance(error, HTTPException)
    code = _HTTP_CODES.get(error.status_code, "http_error")
    headers = dict(error.headers) if error.headers else None
    said = {
        404: _no_endpoint(request),
        405: f"this endpoint does not take {request.method}; use {(headers or {}).get('Allow', 'another method')}",
    }.get(error.status_code, error.detail)
    message = f"{request.method} {request.url.path}: {said}"
    detail = ErrorDetail(message, "invalid_request_error", None, code)
    return _dialect_response(request.scope, error.status_code, detail, headers)


async def on_bug(request: Request, _error: Exception) -> Response:
    """Starlette's handler for unexpected exceptions, which Starlette raises again so that `RequestBorder` logs them."""
    return _dialect_response(request.scope, 500, internal_error_body().error)


def _no_endpoint(request: Request) -> str:
    path = request.url.path
    hints = [hint for part, hint in _HINTS.items() if part in path]
    paths = [route.path for route in request.app.routes if isinstance(route, Route)]
    close = get_close_matches(path, paths, n=1, cutoff=_SIMILAR)
    return "; ".join([_NO_ENDPOINT, *(hints or [f"did you mean `{found}`?" for found in close])])


def _dialect_response(
    scope: Scope, status: int, detail: ErrorDetail, headers: dict[str, str] | None = None
) -> Response:
    dialect = error_format(scope)
    body = dialect.body(status, detail, request_id(scope))
    return json_response(body, status=dialect.status(status), headers=headers)


def _entry(error: StokerError) -> tuple[int, str]:
    return next(_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS)


def _retry_after_s(error: StokerError) -> int:
    value = error.fields.get("retry_after_s")
    return max(1, ceil(float(value if value is not None else _RETRY_AFTER_S)))
