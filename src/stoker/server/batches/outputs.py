"""Writes the files in which OpenAI's clients find the answers of a finished batch."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from stoker.server.batches.files import FileStore
from stoker.server.batches.records import BatchRecord
from stoker.server.batches.results import answered


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """What `BatchRecord` says of the answers of a finished batch, in fields of the same names."""

    num_completed: int
    num_failed: int
    output_file_id: str | None
    error_file_id: str | None = None


async def write_outputs(files: FileStore, batch: BatchRecord) -> Written:
    """Stores the output file with the answers, and the error file with failed requests. Safe to repeat.

    Raises:
        ResourceExhausted: a file cannot be stored on disk.
        OSError: a file cannot be written.
    """
    output_id, num_completed = await _answers(files, batch, "output", is_failed=False)
    error_id, num_failed = await _answers(files, batch, "error", is_failed=True)
    return Written(num_completed=num_completed, num_failed=num_failed, output_file_id=output_id, error_file_id=error_id)


def discard_answers(path: Path) -> None:
    """Deletes the results file of a batch, if there is one."""
    path.unlink(missing_ok=True)
    Path(f"{path}.lock").unlink(missing_ok=True)


async def _answers(files: FileStore, batch: BatchRecord, word: str, *, is_failed: bool) -> tuple[str | None, int]:
    upload = await files.begin(batch.owner, is_output=True)
    try:
        count = await asyncio.to_thread(_select, files.answers_path(batch), upload.path, is_failed=is_failed)
        if count == 0:
            return None, 0
        files.count_written(upload)
        file_id = f"file-{batch.id.removeprefix('batch_')}-{word}"
        record = await files.keep(upload, f"{batch.id}_{word}.jsonl", "batch_output", file_id)
        return record.id, count
    finally:
        await files.drop(upload)


def _select(path: Path, target: Path, *, is_failed: bool) -> int:
    """Copies the lines of failed, or else of successful, requests to another file, and returns their number."""
    count = 0
    with target.open("wb") as chosen:
        for line, result in answered(path):
            if (result.response.status_code >= 400) == is_failed:
                chosen.write(line)
                count += 1
    return count
