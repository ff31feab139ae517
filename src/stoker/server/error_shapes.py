"""The JSON shape of an error in each API. The path and the headers of the request decide the API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec
from msgspec import UNSET
from starlette.datastructures import Headers
from starlette.types import Scope

from stoker.server.error_types import AnthropicError, AnthropicErrorDetail, ErrorBody, ErrorDetail, OllamaError


class ErrorFormat(Protocol):
    """Converts an error from OpenAI's shape to the shape of one API."""

    def status(self, status: int) -> int:
        """The HTTP status that clients of this API expect."""
        ...

    def body(self, status: int, detail: ErrorDetail, request_id: str) -> msgspec.Struct:
        """The body of an error response."""
        ...

    def event(self, status: int, detail: ErrorDetail, request_id: str) -> bytes:
        """The last bytes of a stream that failed."""
        ...


class OpenAIErrors:
    """OpenAI's errors: `{"error": {"message", "type", "param", "code"}}`."""

    def status(self, status: int) -> int:
        return status

    def body(self, status: int, detail: ErrorDetail, request_id: str) -> ErrorBody:
        return ErrorBody(detail)

    def event(self, status: int, detail: ErrorDetail, request_id: str) -> bytes:
        return b"data: " + msgspec.json.encode(ErrorBody(detail)) + b"\n\n"


class AnthropicErrors:
    """Anthropic's errors: `{"type": "error", "error": {"type", "message"}, "request_id"}`, with a type by status."""

    _TYPES: Mapping[int, str] = {
        400: "invalid_request_error",
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        503: "overloaded_error",
        504: "timeout_error",
    }
    _OVERLOADED = 529
    _DETAILS: Mapping[str, dict[str, object]] = {
        "thread": {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    }
    """Details by refused field, from which Anthropic's client learns that it can go on without the field."""

    def status(self, status: int) -> int:
        return self._OVERLOADED if status == 503 else status

    def body(self, status: int, detail: ErrorDetail, request_id: str) -> AnthropicError:
        kind = self._TYPES.get(status, "invalid_request_error" if 400 <= status < 500 else "api_error")
        details = self._DETAILS.get(detail.param or "", UNSET)
        return AnthropicError(error=AnthropicErrorDetail(kind, _compacting(detail), details), request_id=request_id)

    def event(self, status: int, detail: ErrorDetail, request_id: str) -> bytes:
        return b"event: error\ndata: " + msgspec.json.encode(self.body(status, detail, request_id)) + b"\n\n"


class OllamaErrors:
    """Ollama's errors: `{"error": "text"}`, as a response or as a line of a stream."""

    _BUSY = 503

    def status(self, status: int) -> int:
        return self._BUSY if status == 429 else status

    def body(self, status: int, detail: ErrorDetail, request_id: str) -> OllamaError:
        return OllamaError(detail.message)

    def event(self, status: int, detail: ErrorDetail, request_id: str) -> bytes:
        return msgspec.json.encode(OllamaError(detail.message)) + b"\n"


OPENAI, ANTHROPIC, OLLAMA = OpenAIErrors(), AnthropicErrors(), OllamaErrors()


def error_format(scope: Scope) -> ErrorFormat:
    """The error format of the API that the client uses, by the path and the headers of its request."""
    path: str = scope["path"].removeprefix(scope.get("root_path", ""))
    if path == "/api" or path.startswith("/api/"):
        return OLLAMA
    if f"{path.removeprefix('/v1')}/".startswith("/messages/") or is_anthropic(scope):
        return ANTHROPIC
    return OPENAI


def is_anthropic(scope: Scope) -> bool:
    """Whether the header `anthropic-version` marks an Anthropic client, on a path shared with OpenAI's API."""
    return "anthropic-version" in Headers(scope=scope)


def _compacting(detail: ErrorDetail) -> str:
    """The message in Anthropic's words for a prompt that is too long, on which agents compact their history."""
    if detail.n_prompt_tokens is UNSET or detail.n_ctx is UNSET:
        return detail.message
    return f"prompt is too long: {detail.n_prompt_tokens} tokens > {detail.n_ctx} maximum. {detail.message}"
