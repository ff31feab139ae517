"""Writes the results of a finished batch as Anthropic's clients read them: one line for every request of the batch."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import msgspec

from stoker.server.batches.files import OF_A_BATCH, FileStore
from stoker.server.batches.outputs import Written
from stoker.server.batches.records import BatchFault, BatchRecord, BatchStatus
from stoker.server.batches.results import Response, answered
from stoker.server.error_types import AnthropicError, AnthropicErrorDetail


class Succeeded(msgspec.Struct, frozen=True, tag="succeeded"):
    message: msgspec.Raw
    """The reply of `POST /v1/messages`."""


class Errored(msgspec.Struct, frozen=True, tag="errored"):
    error: msgspec.Raw
    """The error as `POST /v1/messages` answers it."""


class Canceled(msgspec.Struct, frozen=True, tag="canceled"):
    """The batch was canceled before the request had an answer."""


class Expired(msgspec.Struct, frozen=True, tag="expired"):
    """The batch ended after 24 hours, before the request had an answer."""


MessageResult: TypeAlias = Succeeded | Errored | Canceled | Expired


class MessageBatchLine(msgspec.Struct, frozen=True):
    """One line of the results."""

    custom_id: str
    result: MessageResult


class _Request(msgspec.Struct, frozen=True):
    """A line of the requests, of which only the id is read."""

    custom_id: str


async def write_results(
    files: FileStore, batch: BatchRecord, end: BatchStatus, faults: tuple[BatchFault, ...]
) -> Written:
    """Stores the results file, which belongs to the batch alone. Safe to repeat.

    Args:
        files: the store, which has the requests and the answers.
        batch: the batch.
        end: how the batch ended; it becomes the result of every request without an answer.
        faults: the error that made the batch fail.

    Raises:
        FileNotStored: the requests are not stored.
        ResourceExhausted: the file cannot be stored on disk.
        OSError: the file cannot be written.
    """
    requests = await files.get(batch.owner, batch.input_file_id, is_of_batch=True)
    upload = await files.begin(batch.owner, is_output=True)
    try:
        lines = _lines(files.answers_path(batch), files.path(requests), _of_unanswered(end, faults))
        num_completed, num_failed = await asyncio.to_thread(_write, lines, upload.path)
        files.count_written(upload)
        name = batch.id.removeprefix("msgbatch_")
        stored = await files.keep(upload, f"{batch.id}_results.jsonl", OF_A_BATCH, f"file-{name}-results")
        return Written(num_completed=num_completed, num_failed=num_failed, output_file_id=stored.id)
    finally:
        await files.drop(upload)


def _of_unanswered(end: BatchStatus, faults: tuple[BatchFault, ...]) -> MessageResult:
    if end == "cancelled":
        return Canceled()
    if end != "failed":
        return Expired()
    message = "; ".join(fault.message for fault in faults)
    error = AnthropicError(error=AnthropicErrorDetail("api_error", message), request_id="")
    return Errored(msgspec.Raw(msgspec.json.encode(error)))


def _lines(answers: Path, requests: Path, unanswered: MessageResult) -> Iterator[MessageBatchLine]:
    done: set[str] = set()
    for _, answer in answered(answers):
        done.add(answer.custom_id)
        yield MessageBatchLine(answer.custom_id, _result(answer.response))
    with requests.open("rb") as lines:
        for line in lines:
            custom_id = msgspec.json.decode(line, type=_Request).custom_id
            if custom_id not in done:
                yield MessageBatchLine(custom_id, unanswered)


def _result(response: Response) -> MessageResult:
    return Errored(response.body) if response.status_code >= 400 else Succeeded(response.body)


def _write(lines: Iterator[MessageBatchLine], target: Path) -> tuple[int, int]:
    """Writes the lines to a file, and returns the number of successful and of failed requests."""
    num_completed = num_failed = 0
    with target.open("wb") as file:
        for line in lines:
            file.write(msgspec.json.encode(line) + b"\n")
            num_completed += isinstance(line.result, Succeeded)
            num_failed += isinstance(line.result, Errored)
    return num_completed, num_failed
