"""The outermost layer of the server: request ids, one log line per request, and a shape for our own bugs.

No prompt and no answer is ever logged: of an unexpected error the log gets its type and its stack, not its text.
"""

from __future__ import annotations

import logging
import re
import time
import traceback
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
from stoker.server.observe.response_counts import ResponseCounts
from stoker.server.sessions.names import HEADERS

error_log = logging.getLogger("stoker.server")

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_HEADER = b"x-request-id"
_NAMES = (_HEADER, b"request-id")
"""Anthropic's clients look for the second one."""
_IGNORED_HEADER = b"x-stoker-ignored"
"""Header with the fields of the body that have no effect."""
_RELAXED_HEADER = b"stoker-relaxed"
"""Header with the parts of a schema that are not enforced in the answer."""
_MAX_RELAXED_CHARS = 2000
"""Clients bound the headers of a reply."""
_ABSOLUTE = re.compile(rb"https?://", re.IGNORECASE)
_STREAMS = (b"text/event-stream", b"application/x-ndjson")


class RequestBorder:
    """Wraps the whole application. Takes a client's `x-request-id` or makes one, and sends it back.

    Args:
        app: whose exceptions end here.
        config: `root_path` and `log_format` are used.
        counts: of the responses.
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
    """One request and what has been sent for it."""

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
        """A bug of ours: the log gets the stack, the client an error in whatever form still fits."""
        stack = "".join(traceback.format_tb(error.__traceback__))
        error_log.error("request %s failed: %s\n%s", self.request_id, type(error).__name__, stack)
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
        """The final status of the exchange; `CLIENT_LEFT` if the client left, whatever was sent before."""
        return CLIENT_LEFT if self._scope["state"].get("client_left") else self._status

    def log(self, *, is_json: bool) -> None:
        duration_s = time.monotonic() - self._begin_s
        log_exchange(self._scope, self.status, duration_s, self.request_id, self._account, is_json=is_json)


def _one_line(phrases: Sequence[str]) -> bytes:
    """The value of a header: plain ASCII, without line breaks, and not too long."""
    line = " ".join("; ".join(phrases).split())
    shown = line if len(line) <= _MAX_RELAXED_CHARS else f"{line[:_MAX_RELAXED_CHARS]}..."
    return shown.encode("ascii", "backslashreplace")


def _to_origin_form(scope: Scope) -> None:
    """A whole URL as the target, as for a proxy: a server has to take it, and its host instead of `Host` (RFC 9112)."""
    authority, slash, rest = scope["raw_path"].partition(b"://")[2].partition(b"/")
    scope["raw_path"] = slash + rest or b"/"
    scope["path"] = unquote(scope["raw_path"].decode("latin-1"))
    others = [(name, value) for name, value in scope["headers"] if name != b"host"]
    scope["headers"] = [(b"host", authority), *others]


def _without_last_slash(scope: Scope) -> None:
    """`/v1/models/` is `/v1/models`. A redirect would cost clients their body, and name a proxy's inside."""
    root, path = scope.get("root_path", ""), scope["path"]
    if path.endswith("/") and path != f"{root}/":
        scope["path"] = path.rstrip("/") or "/"


def _given_id(scope: Scope) -> str:
    """The id that the client chose for this request; empty if it chose none that can be used."""
    given = next((value.decode("latin-1") for name, value in scope["headers"] if name == _HEADER), "")
    return given if _REQUEST_ID.fullmatch(given) else ""
