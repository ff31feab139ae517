"""Stored files in the shapes of Anthropic's API, whose clients use the same paths as OpenAI's."""

from __future__ import annotations

import mimetypes
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import PurePosixPath

import msgspec

from stoker.server.batches.records import FileRecord

ANTHROPIC_PURPOSE = "user_data"
"""Purpose of the files of Anthropic's clients, which name none: messages name the file by its id."""


class AnthropicFile(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created_at: str
    """Time in RFC 3339."""
    filename: str
    mime_type: str
    """MIME type as the client gave it, otherwise guessed from the file's name."""
    size_bytes: int
    expires_at: str | None
    downloadable: bool = True
    type: str = "file"


class AnthropicFileList(msgspec.Struct, frozen=True, kw_only=True):
    data: list[AnthropicFile]
    first_id: str | None
    last_id: str | None
    has_more: bool
    next_page: str | None
    """Value of `page` for the next page; None = this is the last one."""


class DeletedAnthropicFile(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    type: str = "file_deleted"


def anthropic_file(record: FileRecord) -> AnthropicFile:
    """The JSON of a stored file."""
    return AnthropicFile(
        id=record.id,
        created_at=rfc3339(record.created_at),
        expires_at=None if record.expires_at is None else rfc3339(record.expires_at),
        filename=record.filename,
        mime_type=record.mime_type or _guessed(record.filename),
        size_bytes=record.num_bytes,
    )


def _guessed(filename: str) -> str:
    kind, encoding = mimetypes.guess_type(f"x{PurePosixPath(filename).suffix}")  # a whole name is read as a URL
    return kind if kind is not None and encoding is None else "application/octet-stream"


def rfc3339(time_s: int) -> str:
    """A Unix time as Anthropic's clients expect it."""
    return datetime.fromtimestamp(time_s, UTC).isoformat()


def anthropic_list(page: Sequence[FileRecord], *, has_more: bool) -> AnthropicFileList:
    """The JSON of one page of stored files."""
    data = [anthropic_file(record) for record in page]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    next_page = f"{page[-1].created_at}_{page[-1].id}" if page and has_more else None
    return AnthropicFileList(data=data, first_id=first, last_id=last, has_more=has_more, next_page=next_page)
