"""Serves the web page: `GET /` and the files under `/ui/`. They are public code, and reveal nothing about a model."""

from __future__ import annotations

import gzip
import re
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from stoker.server.access.control import UI_FOLDER
from stoker.server.api import Call, Router

router = Router(api="Stoker")

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "worker-src 'self'",
        "manifest-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types stoker dompurify",
    )
)
"""Content-Security-Policy of the page: it loads nothing from other servers, and no text of a model becomes a script."""

ROOT = Path(__file__).resolve().parents[1] / "ui"
_INDEX = "index.html"
_SERVICE_WORKER = "sw.js"
_NAME = re.compile(r"\w+(?:[./]\w+)*", re.ASCII)
"""Valid path of a file below the folder. It has no two separators in a row, so no path leads out of the folder."""
_MEDIA_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}
"""Media types by the suffix of a file; every other file is plain text."""
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_MIN_GZIP_BYTES = 1024


@router.endpoint("GET", "/", "The web page for browsers; other clients get a line of text.", error=None)
async def root(call: Call[None]) -> Response:
    """The page if `Accept` names HTML, else the text by which Ollama's clients recognize a server."""
    if call.config.ui and "text/html" in call.request.headers.get("accept", ""):
        response = await call.off_loop(_file, _INDEX, call.request)
        response.headers["Vary"] = "Accept, Accept-Encoding"
        return response
    return PlainTextResponse("Ollama is running", headers={"Vary": "Accept"})


@router.endpoint("GET", f"{UI_FOLDER}{{name:path}}", "A file of the page.", error=None)
async def file(call: Call[None]) -> Response:
    """A file of the page; 404 if there is none, or if the server runs with `--no-ui`."""
    if not call.config.ui:
        raise HTTPException(404)
    return await call.off_loop(_file, call.path_parameter("name"), call.request)


def _file(name: str, request: Request) -> Response:
    path = ROOT / name
    if _NAME.fullmatch(name) is None or not path.is_file():
        raise HTTPException(404)
    changed = path.stat()
    content, packed, etag = _content(path, changed.st_mtime_ns, changed.st_size)
    headers = {**_HEADERS, "ETag": etag, "Vary": "Accept-Encoding"}
    if name == _SERVICE_WORKER:
        headers["Service-Worker-Allowed"] = "../"  # the page is one folder above it
    if etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if len(content) >= _MIN_GZIP_BYTES and "gzip" in request.headers.get("accept-encoding", ""):
        content = packed
        headers["Content-Encoding"] = "gzip"
    return Response(content, media_type=_MEDIA_TYPES.get(path.suffix, "text/plain"), headers=headers)


@lru_cache(maxsize=256)
def _content(path: Path, time_ns: int, size: int) -> tuple[bytes, bytes, str]:
    """The content of a file, the content compressed with gzip, and its ETag.

    Args:
        path: path of the file.
        time_ns, size: time of the last change, and size. They are keys of the cache, so that an edited file, as in an
            editable installation, is read again.
    """
    content = path.read_bytes()
    return content, gzip.compress(content, mtime=0), f'W/"{sha256(content).hexdigest()[:32]}"'
