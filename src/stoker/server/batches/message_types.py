"""The JSON types of Anthropic's message batches, and the policies of the fields of their requests."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from stoker.server.batches.anthropic_files import rfc3339
from stoker.server.batches.records import BatchRecord
from stoker.server.fields import FieldTable, Ignored, honoured


class MessageBatchItem(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a batch."""

    custom_id: str
    """Id of the client's choice, unique in the batch: 1 to 64 letters, digits, `_` and `-`."""
    params: msgspec.Raw
    """A body of `POST /v1/messages`, without `stream`."""


class MessageBatchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/messages/batches`."""

    requests: list[MessageBatchItem]


MESSAGE_BATCH_FIELDS: FieldTable = honoured(
    MessageBatchRequest,
    {
        "user_profile_id": Ignored("there are no profiles"),
        "workspace_id": Ignored("there are no workspaces"),
        "betas": Ignored("all features are always available"),
    },
)
ITEM_FIELDS: FieldTable = honoured(MessageBatchItem)


class MessageBatchCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of requests. Until the batch has ended, all of them are `processing`."""

    processing: int = 0
    succeeded: int = 0
    errored: int = 0
    canceled: int = 0
    expired: int = 0


ProcessingStatus: TypeAlias = Literal["in_progress", "canceling", "ended"]


class MessageBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A message batch. Times are in RFC 3339; null = the batch has not reached that state."""

    id: str
    processing_status: ProcessingStatus
    request_counts: MessageBatchCounts
    created_at: str
    expires_at: str
    ended_at: str | None
    cancel_initiated_at: str | None
    archived_at: str | None = None
    """Always null: results are stored until the batch is deleted."""
    results_url: str | None
    type: str = "message_batch"


class MessageBatchList(msgspec.Struct, frozen=True, kw_only=True):
    data: list[MessageBatch]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedMessageBatch(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    type: str = "message_batch_deleted"


def message_batch_of(record: BatchRecord, results_url: str) -> MessageBatch:
    """The JSON of a message batch.

    Args:
        record: the batch.
        results_url: URL of its results, which the JSON has if there are any.
    """
    ended_at = record.times[record.status] if record.is_finished else None
    canceled_at = record.times.get("cancelling")
    return MessageBatch(
        id=record.id,
        processing_status=_status(record),
        request_counts=_counts(record),
        created_at=rfc3339(record.created_at),
        expires_at=rfc3339(record.expires_at),
        ended_at=None if ended_at is None else rfc3339(ended_at),
        cancel_initiated_at=None if canceled_at is None else rfc3339(canceled_at),
        results_url=None if record.output_file_id is None else results_url,
    )


def _status(record: BatchRecord) -> ProcessingStatus:
    if record.is_finished:
        return "ended"
    return "canceling" if record.status == "cancelling" else "in_progress"


def _counts(record: BatchRecord) -> MessageBatchCounts:
    if not record.is_finished:
        return MessageBatchCounts(processing=record.num_requests)
    rest = record.num_requests - record.num_completed - record.num_failed
    is_canceled, is_failed = record.status == "cancelled", record.status == "failed"
    return MessageBatchCounts(
        succeeded=record.num_completed,
        errored=record.num_failed + (rest if is_failed else 0),
        canceled=rest if is_canceled else 0,
        expired=0 if is_canceled or is_failed else rest,
    )
