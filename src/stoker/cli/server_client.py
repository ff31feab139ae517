"""A client of a running Stoker server, for the commands that take `--url`."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from stoker.cli.later import urllib
from stoker.errors import InvalidInput, StokerError, reason_of

if TYPE_CHECKING:
    from http.client import HTTPResponse

USUAL_URL = "http://127.0.0.1:8080"
_LOCAL = frozenset({"127.0.0.1", "localhost", "::1"})
_TIMEOUT_S = 60.0
_LONG_S = 600.0
"""Timeout of requests that wait until a model is loaded or unloaded."""
_SILENCE_S = 30.0
"""Timeout of reads from an event stream: a running server sends events more often, if only as a sign of life."""
_MAX_BYTES = 32 << 20

Url = Annotated[
    str | None,
    typer.Option(
        "--url", metavar="URL", show_default=False, help=f"Server to ask. [default: $STOKER_URL, else {USUAL_URL}]"
    ),
]
OtherUrl = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", show_default=False, help="Server to ask instead of the local disk."),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        metavar="KEY",
        show_default=False,
        help="API key for the server. [default: $STOKER_ADMIN_KEY, else the first of $STOKER_API_KEY]",
    ),
]


class ServerClient:
    """Sends requests to one server.

    Args:
        url: base URL, with or without `/v1`. None = `STOKER_URL`, else `USUAL_URL`.
        api_key: None = `STOKER_ADMIN_KEY`, else the first key of `STOKER_API_KEY`, else no key.

    Raises:
        InvalidInput: `url` is not an HTTP URL.
    """

    def __init__(self, url: str | None, api_key: str | None = None) -> None:
        chosen = url or os.environ.get("STOKER_URL") or USUAL_URL
        chosen = chosen if "://" in chosen else f"http://{chosen}"
        host = _host(chosen)
        if host is None:
            raise InvalidInput(f"--url: {chosen!r} is not a URL such as {USUAL_URL}", parameter="url")
        self.url = chosen.rstrip("/").removesuffix("/v1")
        self._key = api_key or os.environ.get("STOKER_ADMIN_KEY") or _first_key(os.environ.get("STOKER_API_KEY") or "")
        self._opener = _opener(host)

    def get(self, path: str) -> dict[str, Any]:
        """The JSON object at this path. Raises as `send`."""
        return self.send("GET", path)

    def post(self, path: str, body: dict[str, Any], *, is_long: bool = False) -> dict[str, Any]:
        """Sends a JSON object, and returns the reply's; `is_long` allows time to load a model. Raises as `send`."""
        return self.send("POST", path, body, _LONG_S if is_long else _TIMEOUT_S)

    def send(
        self, method: str, path: str, body: dict[str, Any] | None = None, timeout_s: float = _TIMEOUT_S
    ) -> dict[str, Any]:
        """Sends one request.

        Returns:
            The JSON object of the reply; an empty one if the reply has no body.

        Raises:
            StokerError: no server answers, it refuses (the message has its reason), or the reply is no JSON object.
        """
        data = None if body is None else json.dumps(body).encode()
        with self._asking(method, path, data, timeout_s) as reply:
            return _object(reply.read(_MAX_BYTES))

    def events(self, path: str) -> Generator[tuple[str, dict[str, Any]]]:
        """Yields name and data of each server-sent event, until the server ends the stream. Raises as `send`."""
        with self._asking("GET", path, None, _SILENCE_S) as reply:
            name = ""
            while line := reply.readline(_MAX_BYTES):
                if line.startswith(b"event: "):
                    name = line.removeprefix(b"event: ").decode().strip()
                elif line.startswith(b"data: "):
                    yield name, _object(line.removeprefix(b"data: "))

    @contextmanager
    def _asking(self, method: str, path: str, data: bytes | None, timeout_s: float) -> Generator[HTTPResponse]:
        request = urllib.request.Request(f"{self.url}{path}", data, self._headers(), method=method)
        try:
            with self._opener.open(request, timeout=timeout_s) as reply:
                yield reply
        except urllib.error.HTTPError as error:
            with error:
                raise StokerError(f"{self.url}: {_reason(error)}") from None
        except (urllib.error.URLError, OSError) as error:
            reason = getattr(error, "reason", error)
            raise StokerError(
                f"no server answers at {self.url} ({reason_of(reason)}): "
                "start one with `stoker serve`, or name another with --url"
            ) from None

    def _headers(self) -> dict[str, str]:
        return {"content-type": "application/json", **({"authorization": f"Bearer {self._key}"} if self._key else {})}


def _host(url: str) -> str | None:
    """The host of an HTTP URL; None if the text is not an HTTP URL."""
    try:
        parts = urllib.parse.urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    return parts.hostname if parts.scheme in ("http", "https") else None


def _first_key(keys: str) -> str:
    """The key of the first entry of `NAME:KEY,…`; the name is optional."""
    return keys.partition(",")[0].rpartition(":")[2].strip()


def _opener(host: str) -> urllib.request.OpenerDirector:
    """Opens URLs without a proxy if `host` is this machine, else with the proxies of the environment."""
    proxies = [urllib.request.ProxyHandler({})] if host in _LOCAL else []
    return urllib.request.build_opener(*proxies)


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body or b"{}")
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise StokerError("the reply is not a JSON object: is this a Stoker server?")
    return cast("dict[str, Any]", value)


def _reason(error: urllib.error.HTTPError) -> str:
    """The message in the body of an error, in any API's format."""
    try:
        about = _object(error.read(_MAX_BYTES)).get("error")
    except StokerError:
        about = None
    message: object = cast("dict[str, Any]", about).get("message") if isinstance(about, dict) else about
    hint = " (give its key with --api-key, or set STOKER_ADMIN_KEY)" if error.code in (401, 403) else ""
    return f"{message or f'status {error.code}'}{hint}"
