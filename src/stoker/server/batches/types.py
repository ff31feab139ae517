"""The JSON types of OpenAI's files and batches, and the policies of the fields of their requests."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from stoker.server.batches.records import BatchFault, BatchRecord, BatchStatus, FileRecord
from stoker.server.fields import FieldTable, Refused, honoured


class Expiry(msgspec.Struct, frozen=True, kw_only=True):
    """Time after which a file is deleted."""

    anchor: Literal["created_at"] = "created_at"
    seconds: int


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/batches`."""

    input_file_id: str
    endpoint: str
    completion_window: str = "24h"
    metadata: dict[str, str] | None = None


Purpose: TypeAlias = Literal["batch", "user_data", "vision", "assistants"]
"""The uses of a file: the input of a batch; or a file that messages name by its id, under each of OpenAI's words."""


class FileForm(msgspec.Struct, frozen=True, kw_only=True):
    """The form of `POST /v1/files`. `expires_after` is written `expires_after[anchor]` and `expires_after[seconds]`."""

    file: str
    purpose: Purpose
    expires_after: Expiry | None = None
    expires_in_seconds: int | None = None
    """The time for which the file is stored, in seconds, as Anthropic's clients write it."""


BATCH_FIELDS: FieldTable = honoured(
    BatchRequest, {"output_expires_after": Refused("responses are stored until they are deleted")}
)


class File(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: str = "processed"
    object: str = "file"


class FileList(msgspec.Struct, frozen=True, kw_only=True):
    data: list[File]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: str = "list"


class DeletedFile(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    deleted: bool = True
    object: str = "file"


class BatchErrors(msgspec.Struct, frozen=True):
    data: tuple[BatchFault, ...]
    object: str = "list"


class RequestCounts(msgspec.Struct, frozen=True):
    total: int
    completed: int
    failed: int


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch. Times are Unix time in seconds; null = the batch has not reached that status."""

    id: str
    endpoint: str
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: BatchStatus
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    metadata: dict[str, str] | None
    object: str = "batch"


class BatchList(msgspec.Struct, frozen=True, kw_only=True):
    data: list[Batch]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: str = "list"


def file_of(record: FileRecord) -> File:
    """The JSON of a stored file."""
    return File(
        id=record.id,
        bytes=record.num_bytes,
        created_at=record.created_at,
        expires_at=record.expires_at,
        filename=record.filename,
        purpose=record.purpose,
    )


def batch_of(record: BatchRecord) -> Batch:
    """The JSON of a batch."""
    at = record.times.get
    return Batch(
        id=record.id,
        endpoint=record.endpoint,
        errors=BatchErrors(record.faults) if record.faults else None,
        input_file_id=record.input_file_id,
        completion_window=record.completion_window,
        status=record.status,
        output_file_id=record.output_file_id,
        error_file_id=record.error_file_id,
        created_at=record.created_at,
        in_progress_at=at("in_progress"),
        expires_at=record.expires_at,
        finalizing_at=at("finalizing"),
        completed_at=at("completed"),
        failed_at=at("failed"),
        expired_at=at("expired"),
        cancelling_at=at("cancelling"),
        cancelled_at=at("cancelled"),
        request_counts=RequestCounts(record.num_requests, record.num_completed, record.num_failed),
        metadata=record.metadata,
    )
