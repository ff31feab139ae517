"""A hub on this machine: repositories of files, with the headers that matter, and the ways in which a hub can fail."""

import hashlib
import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

from tests.unit.models.running_server import running


@dataclass
class FakeHub:
    """Serves `files[(repo, name)]`. `behave`, if set, may answer a request itself (and then returns True)."""

    files: dict[tuple[str, str], bytes] = field(default_factory=dict)
    behave: Callable[[BaseHTTPRequestHandler], bool] | None = None
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """Path and headers (lower case) of every request."""

    def __enter__(self) -> Self:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.requests.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
                if hub.behave is None or not hub.behave(self):
                    hub.answer(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._stack = ExitStack()
        self._server = self._stack.enter_context(running(ThreadingHTTPServer(("127.0.0.1", 0), Handler)))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self._server.server_port

    @property
    def file_requests(self) -> list[dict[str, str]]:
        return [headers for path, headers in self.requests if "/resolve/" in path]

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """As a hub does: a list of files, a file, or 404."""
        path = request.path.strip("/")
        if path.startswith("api/models/"):
            return self._answer_info(request, path.removeprefix("api/models/"))
        repo, _, name = path.partition("/resolve/main/")
        content = self.files.get((repo, name))
        if content is None:
            return send(request, 404, b"")
        headers = {
            "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            "X-Repo-Commit": "c0ffee",
            "Accept-Ranges": "bytes",
        }
        asked = request.headers.get("Range")
        if asked is None:
            return send(request, 200, content, headers)
        first, _, last = asked.removeprefix("bytes=").partition("-")
        part = content[int(first) : int(last) + 1 if last else None]
        headers["Content-Range"] = f"bytes {first}-{int(first) + len(part) - 1}/{len(content)}"
        return send(request, 206, part, headers)

    def _answer_info(self, request: BaseHTTPRequestHandler, repo: str) -> None:
        names = [name for owner, name in self.files if owner == repo]
        if not names:
            return send(request, 404, b"")
        body = {"id": repo, "siblings": [{"rfilename": name} for name in names]}
        return send(request, 200, json.dumps(body).encode(), {"Content-Type": "application/json"})


def send(
    request: BaseHTTPRequestHandler,
    status: int,
    body: bytes,
    headers: dict[str, str] | None = None,
    length: int | None = None,
) -> None:
    """One answer. A `length` larger than the body is a broken promise: the connection ends early."""
    request.send_response(status)
    for name, value in (headers or {}).items():
        request.send_header(name, value)
    request.send_header("Content-Length", str(len(body) if length is None else length))
    request.end_headers()
    request.wfile.write(body)
