"""The input file of a batch in OpenAI's format. All lines are checked, then sorted for the prefix cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import msgspec

from stoker.errors import InvalidInput

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
"""The endpoints that a line may name."""
_MAX_LINES = 1_000_000
MAX_LINE_BYTES = 64 << 20
"""Number of bytes that a line must stay below."""
_PREFIX_BYTES = 1024
"""Length of the beginning of a prompt by which lines are sorted."""
_PROMPTS = ("instructions", "system", "messages", "prompt", "input")
"""Fields of a body that form the prompt, in the order in which they follow each other in the prompt."""

_UNSUITED = {
    "stream": "an answer is written when it is complete",
    "background": "the batch waits for the answer",
}
_NULL = msgspec.Raw(b"null")
_OFF = (msgspec.Raw(b"false"), _NULL)


class Unsuited(msgspec.Struct, kw_only=True):
    """The fields of a body that are checked. All others are left undecoded: there may be millions."""

    stream: msgspec.Raw = _NULL
    background: msgspec.Raw = _NULL


class _Body(Unsuited, kw_only=True):
    """The fields by which lines are sorted too."""

    model: msgspec.Raw = _NULL
    instructions: msgspec.Raw = msgspec.Raw()
    system: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()


class _Line(msgspec.Struct, kw_only=True):
    custom_id: str
    url: str
    body: _Body
    method: str = "POST"


class _Sent(msgspec.Struct):
    body: msgspec.Raw


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One request of a batch, without its body, which stays in the file."""

    custom_id: str
    url: str
    model: str
    """Name of the model in the body; empty = the body names none."""
    prefix: bytes
    """Beginning of the prompt, as JSON."""
    offset: int
    """Position of the line in the file, in bytes."""
    num_bytes: int


def read_lines(
    path: Path, name: str | None = None, endpoint: str | None = None, max_lines: int = _MAX_LINES
) -> list[BatchLine]:
    """All requests of a file, sorted so that requests with a common prefix are adjacent, for the prefix cache.

    Args:
        path: path of the file.
        name: name of the file in error messages; None = its path.
        endpoint: the endpoint that every request must name; None = any of `URLS`.
        max_lines: maximum number of requests.

    Raises:
        InvalidInput: the file cannot be read, or a line is not a valid request; the message and the field `line` tell
            the number of the line.
    """
    name = str(path) if name is None else name
    try:
        lines = list(_numbered(path, name, (endpoint,) if endpoint else URLS, max_lines))
    except OSError as error:
        raise InvalidInput(f"{name} cannot be read: {error.strerror}", parameter="IN") from error
    if not lines:
        raise InvalidInput(f"{name} holds no request: each line is one JSON object", parameter="IN")
    return sorted(lines, key=lambda line: (line.model, line.url, line.prefix))


def full_url(url: str) -> str:
    """The URL of an endpoint with `/v1` at its beginning, which Azure's clients leave out."""
    return url if url.startswith("/v1/") else f"/v1{url}"


def body_of(path: Path, line: BatchLine) -> bytes:
    """The JSON body of a line.

    Raises:
        InvalidInput: the file has changed since `read_lines` read it.
    """
    with path.open("rb") as file:
        file.seek(line.offset)
        raw = file.read(line.num_bytes)
    try:
        return bytes(msgspec.json.decode(raw, type=_Sent).body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} was changed while its requests were computed", parameter="IN") from error


def unsuited(body: Unsuited) -> Iterator[tuple[str, str]]:
    """The fields of a body that no request in a batch may have, each with the reason."""
    for field, reason in _UNSUITED.items():
        if getattr(body, field) not in _OFF:
            yield field, reason


def _numbered(path: Path, name: str, urls: Sequence[str], max_lines: int) -> Iterator[BatchLine]:
    first_of: dict[str, int] = {}
    offset = 0
    with path.open("rb") as file:
        number = 0
        while raw := file.readline(MAX_LINE_BYTES):
            number += 1
            if raw.strip():
                line = _checked(raw, offset, number, name, urls)
                first = first_of.setdefault(line.custom_id, number)
                if first != number:
                    _refuse(name, number, f"`custom_id` {line.custom_id!r} is that of line {first} already")
                yield line
            if len(first_of) > max_lines:
                _refuse(name, number, f"a file has at most {max_lines} requests")
            offset += len(raw)


def _checked(raw: bytes, offset: int, number: int, name: str, urls: Sequence[str]) -> BatchLine:
    if len(raw) == MAX_LINE_BYTES:
        _refuse(name, number, f"it has {MAX_LINE_BYTES} bytes or more")
    try:
        line = msgspec.json.decode(raw, type=_Line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        _refuse(name, number, str(error))
    except RecursionError:
        _refuse(name, number, "it is nested too deeply")
    url = full_url(line.url)
    if line.method != "POST" or url not in urls:
        _refuse(name, number, f"{line.method} {line.url} is none of POST {', '.join(urls)}")
    for field, reason in unsuited(line.body):
        _refuse(name, number, f"`{field}` must be left out: {reason}")
    prefix = b"".join(bytes(getattr(line.body, name))[:_PREFIX_BYTES] for name in _PROMPTS)
    return BatchLine(line.custom_id, url, _model(line), prefix[:_PREFIX_BYTES], offset, len(raw))


def _model(line: _Line) -> str:
    try:
        return msgspec.json.decode(line.body.model, type=str)
    except (msgspec.MsgspecError, UnicodeDecodeError):  # the endpoint refuses it, and this request alone
        return ""


def _refuse(name: str, number: int, why: str) -> NoReturn:
    raise InvalidInput(f"{name}, line {number}: {why}", parameter="IN", line=number)
