"""Reads the body that creates a message batch from a file, and writes its requests as lines in OpenAI's format."""

from __future__ import annotations

import mmap
import re
from codecs import BOM_UTF8
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from msgspec import Raw

from stoker.errors import InvalidInput
from stoker.server.batches.lines import MAX_LINE_BYTES, Unsuited, unsuited
from stoker.server.batches.message_types import (
    ITEM_FIELDS,
    MESSAGE_BATCH_FIELDS,
    MessageBatchItem,
    MessageBatchRequest,
)
from stoker.server.batches.records import MESSAGES_URL
from stoker.server.fields import convert_fields

_CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")

MAX_OTHER_BYTES = 8 << 10
"""Maximum number of bytes of a body besides its requests, and of a request besides its parameters."""
_NULL = Raw(b"null")


class _Body(msgspec.Struct, frozen=True):
    requests: Raw = _NULL


class _Item(msgspec.Struct, frozen=True):
    params: Raw = _NULL


def write_requests(body: Path, target: Path, max_requests: int) -> int:
    """Checks a body, and writes each of its requests as a line of another file.

    The body is mapped into memory, and its requests are decoded one after the other. Nothing else that it may have is
    decoded beyond a few KiB.

    Args:
        body: file with the JSON of a `MessageBatchRequest`.
        target: file for the lines, which exists.
        max_requests: maximum number of requests.

    Returns:
        The number of requests.

    Raises:
        InvalidInput: the body is not valid; the error names the request and the field.
        OSError: a file cannot be read or written.
    """
    with body.open("rb") as file:
        requests = _requests(file, max_requests)
    if not requests:
        raise InvalidInput("`requests` must have at least one request", parameter="requests")
    index_of: dict[str, int] = {}
    with target.open("wb") as lines:
        for index, raw in enumerate(requests):
            where = f"requests[{index}]"
            item = _item(raw, where)
            first = index_of.setdefault(item.custom_id, index)
            if first != index:
                message = f"`{where}.custom_id`: {item.custom_id!r} is that of `requests[{first}]` already"
                raise InvalidInput(message, parameter=f"{where}.custom_id")
            lines.write(_line(item, where))
    return len(requests)


def _requests(file: BinaryIO, max_requests: int) -> list[Raw]:
    """The undecoded requests of a body, which refer to the mapped file."""
    if not file.seek(0, 2):
        raise InvalidInput("the request body is empty, but must be a JSON object")
    mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    text = mapped[len(BOM_UTF8) :] if bytes(mapped[: len(BOM_UTF8)]) == BOM_UTF8 else mapped
    with _decoding("the request body"):
        found = msgspec.json.decode(text, type=_Body)
        values = _fields(text, "requests", found.requests, "the request body")
    with _decoding("`requests`", "requests"):
        # The requests are converted one by one later, so an empty list stands for them here.
        values["requests"] = None if found.requests == _NULL else []
        convert_fields(values, MESSAGE_BATCH_FIELDS, MessageBatchRequest)
        msgspec.json.decode(found.requests, type=list[_counted(max_requests)])
        return msgspec.json.decode(found.requests, type=list[Raw])


def _counted(max_requests: int) -> type[Any]:
    """A type of which at most `max_requests` objects are decoded. They hold nothing, however large the JSON is."""
    numbers = count(1)

    class Counted(msgspec.Struct, gc=False):
        def __post_init__(self) -> None:
            if next(numbers) > max_requests:
                raise InvalidInput(f"`requests` can have at most {max_requests} requests", parameter="requests")

    return Counted


def _fields(text: memoryview | Raw, large: str, content: Raw, where: str) -> dict[str, Any]:
    """The decoded fields of a JSON object, and undecoded the one that may be large, whose JSON is `content`."""
    if memoryview(text).nbytes - memoryview(content).nbytes > MAX_OTHER_BYTES:
        raise InvalidInput(f"{where} has more than {MAX_OTHER_BYTES} bytes besides `{large}`")
    fields = msgspec.json.decode(text, type=dict[str, Raw])
    return {name: value if name == large else msgspec.json.decode(value) for name, value in fields.items()}


def _item(raw: Raw, where: str) -> MessageBatchItem:
    with _decoding(f"`{where}`", where):
        values = _fields(raw, "params", msgspec.json.decode(raw, type=_Item).params, f"`{where}`")
    item = convert_fields(values, ITEM_FIELDS, MessageBatchItem, f"{where}.")
    if not _CUSTOM_ID.fullmatch(item.custom_id):
        message = f"`{where}.custom_id` must be 1 to 64 letters, digits, `_` and `-`, not {item.custom_id[:80]!r}"
        raise InvalidInput(message, parameter=f"{where}.custom_id")
    return item


def _line(item: MessageBatchItem, where: str) -> bytes:
    where = f"{where}.params"
    with _decoding(f"`{where}`", where):
        settings = msgspec.json.decode(item.params, type=Unsuited)
        body = Raw(msgspec.json.format(item.params, indent=-1))
    for field, reason in unsuited(settings):
        raise InvalidInput(f"`{where}.{field}` must be left out: {reason}", parameter=f"{where}.{field}")
    line = msgspec.json.encode({"custom_id": item.custom_id, "url": MESSAGES_URL, "body": body}) + b"\n"
    if len(line) >= MAX_LINE_BYTES:
        raise InvalidInput(f"`{where}` has {len(line)} bytes, but must be below {MAX_LINE_BYTES}", parameter=where)
    return line


@contextmanager
def _decoding(what: str, parameter: str | None = None) -> Generator[None]:
    try:
        yield
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"{what} is not valid: {error}", parameter=parameter) from None
