"""Reads the body that creates a message batch from a file, and writes its requests as lines in OpenAI's format."""

from __future__ import annotations

import mmap
import re
from codecs import BOM_UTF8
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec
from msgspec import Raw

from stoker.errors import InvalidInput
from stoker.server.batches.lines import MAX_LINE_BYTES, unsuited
from stoker.server.batches.message_types import (
    ITEM_FIELDS,
    MESSAGE_BATCH_FIELDS,
    MessageBatchItem,
    MessageBatchRequest,
)
from stoker.server.batches.records import MESSAGES_URL
from stoker.server.fields import convert_fields

_CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")

T = TypeVar("T")


def write_requests(body: Path, target: Path, max_requests: int) -> int:
    """Checks a body, and writes each of its requests as a line of another file.

    The body is mapped into memory, and its requests are decoded one after the other.

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
        requests = _requests(file)
    if not requests:
        raise InvalidInput("`requests` must have at least one request", parameter="requests")
    if len(requests) > max_requests:
        message = f"`requests` can have {max_requests} requests, not {len(requests)}"
        raise InvalidInput(message, parameter="requests")
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


def _requests(file: BinaryIO) -> list[Raw]:
    """The undecoded requests of a body, which refer to the mapped file."""
    if not file.seek(0, 2):
        raise InvalidInput("the request body is empty, but must be a JSON object")
    mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    text = mapped[len(BOM_UTF8) :] if bytes(mapped[: len(BOM_UTF8)]) == BOM_UTF8 else mapped
    with _decoding("the request body"):
        fields = msgspec.json.decode(text, type=dict[str, Raw])
        values: dict[str, Any] = {name: msgspec.json.decode(raw) for name, raw in fields.items() if name != "requests"}
    with _decoding("`requests`", "requests"):
        requests = msgspec.json.decode(fields.get("requests", Raw(b"null")), type=list[Raw] | None)
    # The requests are converted one by one later, so an empty list stands for them here.
    values["requests"] = None if requests is None else []
    convert_fields(values, MESSAGE_BATCH_FIELDS, MessageBatchRequest)
    return requests or []


def _item(raw: Raw, where: str) -> MessageBatchItem:
    with _decoding(f"`{where}`", where):
        fields = msgspec.json.decode(raw, type=dict[str, Raw])
        values: dict[str, Any] = {
            name: value if name == "params" else msgspec.json.decode(value) for name, value in fields.items()
        }
    item = convert_fields(values, ITEM_FIELDS, MessageBatchItem, f"{where}.")
    if not _CUSTOM_ID.fullmatch(item.custom_id):
        message = f"`{where}.custom_id` must be 1 to 64 letters, digits, `_` and `-`, not {item.custom_id[:80]!r}"
        raise InvalidInput(message, parameter=f"{where}.custom_id")
    return item


def _line(item: MessageBatchItem, where: str) -> bytes:
    where = f"{where}.params"
    with _decoding(f"`{where}`", where):
        params = msgspec.json.decode(item.params, type=dict[str, Raw])
        body = Raw(msgspec.json.format(item.params, indent=-1))
    for field, reason in unsuited(params):
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
