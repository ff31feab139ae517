"""The input file of a batch, in OpenAI's format: read once, checked as a whole, and put into the order of computing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import msgspec

from stoker.errors import InvalidInput

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
"""The endpoints that a line may ask."""
_MAX_LINES = 1_000_000
_MAX_LINE_BYTES = 64 << 20
_PREFIX_BYTES = 1024
"""As much of a prompt decides where its line stands in the order."""
_PROMPTS = ("instructions", "messages", "prompt", "input")
"""The fields of a body that a prompt begins with."""


class _Line(msgspec.Struct, kw_only=True):
    custom_id: str
    url: str
    body: dict[str, msgspec.Raw]
    method: str = "POST"


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One request of a batch. Its body stays in the file."""

    custom_id: str
    url: str
    model: str
    """As the body names it; empty: the body names none."""
    prefix: bytes
    """How the prompt begins, as JSON."""
    offset: int
    """Where the line begins in the file, in bytes."""
    num_bytes: int


def read_lines(path: Path) -> list[BatchLine]:
    """All requests of a file, those with a common prefix behind one another.

    Raises:
        InvalidInput: the file cannot be read, or a line is not a request; the message names the line.
    """
    try:
        lines = list(_numbered(path))
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}", parameter="IN") from error
    if not lines:
        raise InvalidInput(f"{path} holds no request: each line is one JSON object", parameter="IN")
    return sorted(lines, key=lambda line: (line.model, line.url, line.prefix))


def body_of(path: Path, line: BatchLine) -> bytes:
    """The JSON body of a line.

    Raises:
        InvalidInput: the file was changed since it was read.
    """
    with path.open("rb") as file:
        file.seek(line.offset)
        raw = file.read(line.num_bytes)
    try:
        found = msgspec.json.decode(raw, type=_Line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} was changed while its requests were computed", parameter="IN") from error
    return msgspec.json.encode(found.body)


def _numbered(path: Path) -> Iterator[BatchLine]:
    first_of: dict[str, int] = {}
    offset = 0
    with path.open("rb") as file:
        number = 0
        while raw := file.readline(_MAX_LINE_BYTES):
            number += 1
            if raw.strip():
                line = _checked(raw, offset, number, path)
                first = first_of.setdefault(line.custom_id, number)
                if first != number:
                    _refuse(path, number, f"`custom_id` {line.custom_id!r} is that of line {first} already")
                yield line
            if len(first_of) > _MAX_LINES:
                _refuse(path, number, f"a file has at most {_MAX_LINES} requests")
            offset += len(raw)


def _checked(raw: bytes, offset: int, number: int, path: Path) -> BatchLine:
    if len(raw) == _MAX_LINE_BYTES:
        _refuse(path, number, f"it has {_MAX_LINE_BYTES} bytes or more")
    try:
        line = msgspec.json.decode(raw, type=_Line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        _refuse(path, number, str(error))
    if line.method != "POST" or line.url not in URLS:
        _refuse(path, number, f"{line.method} {line.url} is none of POST {', '.join(URLS)}")
    if line.body.get("stream") not in (None, msgspec.Raw(b"false"), msgspec.Raw(b"null")):
        _refuse(path, number, "`stream` must be left out: an answer is written when it is complete")
    prefix = b"".join(bytes(line.body[name])[:_PREFIX_BYTES] for name in _PROMPTS if name in line.body)
    return BatchLine(line.custom_id, line.url, _model(line), prefix[:_PREFIX_BYTES], offset, len(raw))


def _model(line: _Line) -> str:
    try:
        return msgspec.json.decode(line.body.get("model", msgspec.Raw(b'""')), type=str)
    except msgspec.MsgspecError:
        return ""


def _refuse(path: Path, number: int, why: str) -> NoReturn:
    raise InvalidInput(f"{path}, line {number}: {why}", parameter="IN")
