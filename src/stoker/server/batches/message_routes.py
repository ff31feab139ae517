"""The endpoints of Anthropic's message batches. The handlers only call other modules, in order."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, BinaryIO, TypeAlias

from starlette.responses import Response

from stoker.errors import BatchNotFound, InvalidInput
from stoker.server.api import Call, Router
from stoker.server.batches.batches import MAX_MESSAGES
from stoker.server.batches.files import FileStore, Upload
from stoker.server.batches.message_requests import write_requests
from stoker.server.batches.message_results import MessageBatchLine
from stoker.server.batches.message_types import (
    MESSAGE_BATCH_FIELDS,
    DeletedMessageBatch,
    MessageBatch,
    MessageBatchList,
    MessageBatchRequest,
    message_batch_of,
)
from stoker.server.batches.records import BatchRecord
from stoker.server.batches.routes import batches_of, owner_of_call
from stoker.server.batches.upload import receive_requests
from stoker.server.error_types import AnthropicError
from stoker.server.errors import json_response
from stoker.server.fields import page_limit
from stoker.server.observe.account import account_of
from stoker.server.transport.sse import EventStream, Framing

router = Router(api="Anthropic", error=AnthropicError)

_Place: TypeAlias = tuple[int, str]
"""Place of a batch in a list: the time of its creation, and its id."""
_ID = re.compile(r"msgbatch_(?P<created_at>[0-9a-f]{8})[0-9a-f]{24}")
_USUAL_PAGE = 20
_MAX_PAGE = 1000
_JSONL = Framing(b"application/x-jsonl", None)
_CHUNK_BYTES = 1 << 18


@router.endpoint(
    "POST",
    "/v1/messages/batches",
    "Computes many messages requests, after all requests whose clients wait for the reply.",
    aliases=("/messages/batches",),
    streamed_body=MessageBatchRequest,
    fields=MESSAGE_BATCH_FIELDS,
    reply=MessageBatch,
)
async def create_message_batch(call: Call[None]) -> Response:
    batches, owner = batches_of(call), owner_of_call(call)
    batches.check_vacancy(owner)
    body = await receive_requests(call.request, batches.files, owner, call.config.body_timeout_s)
    requests: Upload | None = None
    try:
        requests = await batches.files.begin(owner)
        num_requests = await _written(call, batches.files, body, requests)
        key_name = account_of(call.request.scope).key_name
        return _shown(call, await batches.create_of_messages(owner, key_name, requests, num_requests))
    finally:
        for upload in (body, requests):
            if upload is not None:
                await batches.files.drop(upload)


@router.endpoint(
    "GET",
    "/v1/messages/batches",
    "Lists the message batches of this API key, the newest first.",
    aliases=("/messages/batches",),
    query={"limit": int, "after_id": str, "before_id": str},
    reply=MessageBatchList,
)
async def list_message_batches(call: Call[None]) -> Response:
    page, has_more = _page(call, batches_of(call).all_of(owner_of_call(call), is_of_messages=True))
    data = [message_batch_of(record, _results_url(call, record)) for record in page]
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    return json_response(MessageBatchList(data=data, first_id=first, last_id=last, has_more=has_more))


@router.endpoint(
    "GET",
    "/v1/messages/batches/{batch_id}",
    "Shows the state of a message batch.",
    aliases=("/messages/batches/{batch_id}",),
    reply=MessageBatch,
)
async def get_message_batch(call: Call[None]) -> Response:
    return _shown(call, _batch(call))


@router.endpoint(
    "POST",
    "/v1/messages/batches/{batch_id}/cancel",
    "Cancels a message batch; finished answers are kept.",
    aliases=("/messages/batches/{batch_id}/cancel",),
    reply=MessageBatch,
)
async def cancel_message_batch(call: Call[None]) -> Response:
    batch_id = call.path_parameter("batch_id")
    return _shown(call, await batches_of(call).cancel(owner_of_call(call), batch_id, is_of_messages=True))


@router.endpoint(
    "DELETE",
    "/v1/messages/batches/{batch_id}",
    "Deletes a message batch that has ended, with its results.",
    aliases=("/messages/batches/{batch_id}",),
    reply=DeletedMessageBatch,
)
async def delete_message_batch(call: Call[None]) -> Response:
    batch = await batches_of(call).delete_of_messages(owner_of_call(call), call.path_parameter("batch_id"))
    return json_response(DeletedMessageBatch(id=batch.id))


@router.endpoint(
    "GET",
    "/v1/messages/batches/{batch_id}/results",
    "Downloads the results of a message batch that has ended, one line for each request.",
    aliases=("/messages/batches/{batch_id}/results",),
    event=MessageBatchLine,
    stream_media="application/x-jsonl",
)
async def get_message_results(call: Call[None]) -> EventStream:
    file = await _opened(call, _batch(call))

    async def close() -> None:
        file.close()

    return EventStream(_chunks(file), close, call.config, _JSONL)


async def _written(call: Call[None], files: FileStore, body: Upload, requests: Upload) -> int:
    """Writes the requests of a received body to another upload, and returns their number."""
    await call.off_loop(body.file.flush)
    num_requests = await call.off_loop(write_requests, body.path, requests.path, MAX_MESSAGES)
    await files.drop(body)
    files.count_written(requests)
    files.check_room(requests.owner)
    return num_requests


def _batch(call: Call[None]) -> BatchRecord:
    return batches_of(call).get(owner_of_call(call), call.path_parameter("batch_id"), is_of_messages=True)


def _shown(call: Call[Any], record: BatchRecord) -> Response:
    return json_response(message_batch_of(record, _results_url(call, record)))


def _results_url(call: Call[Any], record: BatchRecord) -> str:
    return f"{call.request.base_url}v1/messages/batches/{record.id}/results"


def _page(call: Call[None], batches: list[BatchRecord]) -> tuple[list[BatchRecord], bool]:
    """The page of a list, the newest batch first, that the query selects, and whether more batches follow.

    The batches that `after_id` and `before_id` name may have been deleted.
    """
    limit = page_limit(call.query, _USUAL_PAGE, _MAX_PAGE)
    after, before = (_place(call, name, batches) for name in ("after_id", "before_id"))
    if after is not None:
        batches = [batch for batch in batches if (batch.created_at, batch.id) < after]
    if before is not None:
        batches = [batch for batch in batches if (batch.created_at, batch.id) > before]
        return batches[-limit:], len(batches) > limit
    return batches[:limit], len(batches) > limit


def _place(call: Call[None], name: str, batches: list[BatchRecord]) -> _Place | None:
    """The place of the batch that the query names, which has it in its id in case that it was deleted."""
    batch_id = call.query.get(name)
    if not batch_id:
        return None
    match = _ID.fullmatch(batch_id)
    if match is None:
        raise InvalidInput(f"`{name}` must be the id of a message batch, not {batch_id[:100]!r}", parameter=name)
    found = next((batch.created_at for batch in batches if batch.id == batch_id), None)
    return int(match["created_at"], 16) if found is None else found, batch_id


async def _opened(call: Call[None], batch: BatchRecord) -> BinaryIO:
    """The file with the results of a batch. The caller closes it."""
    if not batch.is_finished:
        message = f"the batch {batch.id} has no results yet: they are complete when it has ended"
        raise InvalidInput(message, parameter="batch_id")
    if batch.output_file_id is None:
        reasons = "; ".join(fault.message for fault in batch.faults)
        raise InvalidInput(f"the batch {batch.id} has no results: {reasons}", parameter="batch_id")
    files = batches_of(call).files
    record = await files.get(batch.owner, batch.output_file_id, "batch_id", is_of_batch=True)
    with suppress(FileNotFoundError):
        return await call.off_loop(files.path(record).open, "rb")
    raise BatchNotFound(f"the batch {batch.id} was deleted", batch_id=batch.id, parameter="batch_id")


async def _chunks(file: BinaryIO) -> AsyncGenerator[bytes, None]:
    while chunk := await asyncio.to_thread(file.read, _CHUNK_BYTES):
        yield chunk
