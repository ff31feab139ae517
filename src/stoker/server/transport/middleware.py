"""The outermost ASGI layer: request ids, one log line per request, and error replies for unexpected exceptions.

No prompt and no answer is ever logged.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Sequence
from urllib.parse import unquote

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stoker.server.config import ServerConfig
from stoker.server.error_shapes import error_format
from stoker.server.errors import CLIENT_LEFT, internal_error_body
from stoker.server.fields import IGNORED
from stoker.server.observe.access_log import log_exchange
from stoker.server.observe.account import Account
from stoker.server.observe.bug_log import log_bug
from stoker.server.observe.response_counts import ResponseCounts
from stoker.server.sessions.names import HEADERS

error_log = logging.getLogger("stoker.server")

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_HEADER = b"x-request-id"
_NAMES = (_HEADER, b"request-id")
"""Response headers with the request id. Anthropic's clients read `request-id`."""
_IGNORED_HEADER = b"x-stoker-ignored"
"""Response header that lists the fields of the request body that have no effect."""
_RELAXED_HEADER = b"stoker-relaxed"
"""Response header that lists the parts of a JSON schema that are not enforced in the answer."""
_MAX_RELAXED_CHARS = 2000
"""Maximum length of the header's value, because clients limit the size of response headers."""
_ABSOLUTE = re.compile(rb"https?://", re.IGNORECASE)
_STREAMS = (b"text/event-stream", b"application/x-ndjson")


class RequestBorder:
    """The outermost ASGI layer. It takes a client's `x-request-id` or creates one, and returns it in the response.

    Args:
        app: the application, whose exceptions are caught here.
        config: `root_path` and `log_format` are used.
        counts: counter of the responses.
    """

    def __init__(self, app: ASGIApp, config: ServerConfig, counts: ResponseCounts) -> None:
        self._app = app
        self._counts = counts
        self._root_path = config.root_path
        self._is_json = config.log_format == "json"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if _ABSOLUTE.match(scope["raw_path"] or b""):
            _to_origin_form(scope)
        exchange = _Exchange(scope, send)
        if scope["path"].startswith(f"{self._root_path}/"):
            scope["root_path"] = self._root_path or scope.get("root_path", "")
        _without_last_slash(scope)
        try:
            await self._app(scope, receive, exchange.send)
        except Exception as error:  # noqa: BLE001  # one of the two borders at which everything is caught
            await exchange.fail(error)
        finally:
            self._counts.note(scope, exchange.status)
            exchange.log(is_json=self._is_json)


class _Exchange:
    """One request and the state of its response."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope = scope
        self._send = send
        self._begin_s = time.monotonic()
        self._status = 0
        self._is_stream = False
        self._is_complete = False
        given = _given_id(scope)
        self.request_id = given or uuid.uuid4().hex
        self._account = Account(own_id="" if given else self.request_id)
        scope["state"] = {**scope.get("state", {}), "request_id": self.request_id, "account": self._account}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [*message.get("headers", []), *((name, self.request_id.encode()) for name in _NAMES)]
            if ignored := self._scope["state"].get(IGNORED):
                headers.append((_IGNORED_HEADER, ", ".join(ignored).encode()))
            if relaxed := self._account.relaxed:
                headers.append((_RELAXED_HEADER, _one_line(relaxed)))
            if session := self._account.session:
                headers += [(name.encode(), session.encode()) for name in HEADERS]
            self._status = message["status"]
            self._is_stream = any(k == b"content-type" and v.startswith(_STREAMS) for k, v in headers)
            message = {**message, "headers": headers}
        elif message["type"] == "http.response.body" and not message.get("more_body", False):
            self._is_complete = True
        await self._send(message)

    async def fail(self, error: Exception) -> None:
        """Handles an unexpected exception: logs its stack, and sends an error 500, or an error event into a stream."""
        log_bug(error_log, f"request {self.request_id}", error)
        dialect, detail = error_format(self._scope), internal_error_body().error
        if not self._status:
            body = msgspec.json.encode(dialect.body(500, detail, self.request_id))
            headers = [(b"content-type", b"application/json")]
            await self.send({"type": "http.response.start", "status": 500, "headers": headers})
            await self.send({"type": "http.response.body", "body": body})
        elif self._is_stream and not self._is_complete:
            await self.send({"type": "http.response.body", "body": dialect.event(500, detail, self.request_id)})

    @property
    def status(self) -> int:
        """The final HTTP status; `CLIENT_LEFT` if the client disconnected, whatever was sent before."""
        return CLIENT_LEFT if self._scope["state"].get("client_left") else self._status

    def log(self, *, is_json: bool) -> None:
        duration_s = time.monotonic() - self._begin_s
        log_exchange(self._scope, self.status, duration_s, self.request_id, self._account, is_json=is_json)


def _one_line(phrases: Sequence[str]) -> bytes:
    """The phrases as the value of a header: one line of ASCII, cut at `_MAX_RELAXED_CHARS`."""
    line = " ".join("; ".join(phrases).split())
    shown = line if len(line) <= _MAX_RELAXED_CHARS else f"{line[:_MAX_RELAXED_CHARS]}..."
    return shown.encode("ascii", "backslashreplace")


def _to_origin_form(scope: Scope) -> None:
    """Reduces an absolute URL as the request's target to its path. Its host replaces the header `Host` (RFC 9112)."""
    authority, slash, rest = scope["raw_path"].partition(b"://")[2].partition(b"/")
    scope["raw_path"] = slash + rest or b"/"
    scope["path"] = unquote(scope["raw_path"].decode("latin-1"))
    others = [(name, value) for name, value in scope["headers"] if name != b"host"]
    scope["headers"] = [(b"host", authority), *others]


def _without_last_slash(scope: Scope) -> None:
    """Drops a slash at the end of the path. A redirect would lose the client's body and reveal a proxy's inner URL."""
    root, path = scope.get("root_path", ""), scope["path"]
    if path.endswith("/") and path != f"{root}/":
        scope["path"] = path.rstrip("/") or "/"


def _given_id(scope: Scope) -> str:
    """The client's own `x-request-id`; empty if the client sent none, or an invalid one."""
    given = next((value.decode("latin-1") for name, value in scope["headers"] if name == _HEADER), "")
    return given if _REQUEST_ID.fullmatch(given) else ""
