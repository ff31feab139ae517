"""OpenAI's batches: accepts them, computes them after all interactive requests, and resumes them after a restart."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from stoker.errors import BatchNotFound, InvalidInput, Overloaded, StokerError
from stoker.server.access.control import grant
from stoker.server.batches.files import FileStore
from stoker.server.batches.lines import read_lines
from stoker.server.batches.records import BatchFault, BatchRecord, BatchStatus
from stoker.server.batches.results import Result, open_results
from stoker.server.batches.run import run_batch
from stoker.server.errors import internal_error_body
from stoker.server.observe.account import account_of
from stoker.server.observe.bug_log import log_bug

logger = logging.getLogger(__name__)

PRIORITY = -1_000_000
"""Priority of all batch requests: interactive requests run first, and preempt them."""
MAX_UNFINISHED = 100
"""Maximum number of unfinished batches of one owner."""
MAX_KEPT = 1000
"""Maximum number of finished batches of one owner, with a new one; the oldest finished ones are removed first."""
MAX_LINES = 50_000
_MAX_RUNNING = 4
"""Maximum number of batches that are computed at the same time, each of another owner."""
WINDOW_S = 86_400
_RETRY_S = 60.0
"""Seconds after which a batch whose state could not be written is tried again."""


class Batches:
    """All batches of one server. Belongs to one event loop. Call `start` to compute them, and `close` at the end.

    Args:
        files: stores the files and the records of batches; closed by `close`.
        concurrency: number of requests of all batches together that run at the same time.
        clock: returns Unix time in seconds.
    """

    def __init__(self, files: FileStore, concurrency: int = 8, clock: Callable[[], float] = time.time) -> None:
        self.files = files
        self._shelf = files.batches
        self._concurrency = concurrency
        self._clock = clock
        self._gate = asyncio.Semaphore(concurrency)
        self._running: dict[str, asyncio.Task[None]] = {}
        self._counts: dict[str, tuple[int, int]] = {}
        """Number of answered requests of each running batch, and how many of them failed."""
        self._app: ASGIApp | None = None
        self._retry: asyncio.TimerHandle | None = None
        """The last retry that was planned."""
        self._is_closed = False

    def serve_with(self, app: ASGIApp) -> None:
        """Sets the application that answers the requests; it does not check API keys."""
        self._app = app

    def start(self) -> None:
        """Starts to compute batches, including those that an earlier process left unfinished."""
        self._start_next()

    async def close(self) -> None:
        """Stops the running batches, which the next process resumes. Calling it twice is allowed."""
        self._is_closed = True
        if self._retry is not None:
            self._retry.cancel()
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        self.files.close()

    async def create(
        self, owner: str, key_name: str, endpoint: str, input_file_id: str, metadata: dict[str, str] | None
    ) -> BatchRecord:
        """Accepts a batch of this owner.

        Raises:
            FileNotStored: the owner has no such file.
            Overloaded: too many batches of the owner are unfinished.
        """
        await self.files.get(owner, input_file_id, "input_file_id")
        own = self._shelf.of(owner)
        if sum(not batch.is_finished for batch in own) >= MAX_UNFINISHED:
            raise Overloaded(f"{MAX_UNFINISHED} batches of this API key are not finished yet", retry_after_s=60.0)
        for old in [batch for batch in own if batch.is_finished][MAX_KEPT - 1 :]:
            await self._shelf.remove(old)
        now = int(self._clock())
        batch = BatchRecord(
            id=f"batch_{uuid.uuid4().hex}",
            owner=owner,
            key_name=key_name,
            endpoint=endpoint,
            input_file_id=input_file_id,
            completion_window="24h",
            metadata=metadata,
            status="validating",
            created_at=now,
            expires_at=now + WINDOW_S,
            times={"validating": now},
        )
        await self._shelf.put(batch)
        self._start_next()
        return batch

    def get(self, owner: str, batch_id: str) -> BatchRecord:
        """A batch as it is now.

        Raises:
            BatchNotFound: the owner has none of this id.
        """
        batch = self._shelf.get(owner, batch_id)
        if batch is None:
            raise BatchNotFound(f"there is no batch {batch_id[:100]!r}", batch_id=batch_id[:100], parameter="batch_id")
        return self._counted(batch)

    def all_of(self, owner: str) -> list[BatchRecord]:
        """The batches of this owner, the newest first."""
        return [self._counted(batch) for batch in self._shelf.of(owner)]

    def reads(self, owner: str, file_id: str) -> BatchRecord | None:
        """The unfinished batch that has this file as its input; None if there is none."""
        own = (batch for batch in self._shelf.of(owner) if not batch.is_finished)
        return next((batch for batch in own if batch.input_file_id == file_id), None)

    async def cancel(self, owner: str, batch_id: str) -> BatchRecord:
        """Cancels a batch; finished answers are kept.

        Raises:
            BatchNotFound: see `get`.
            InvalidInput: it is finished.
        """
        batch = self.get(owner, batch_id)
        if batch.is_finished:
            raise InvalidInput(f"the batch {batch_id} is {batch.status} already", parameter="batch_id")
        if batch.status != "cancelling":
            batch = await self._enter(batch, "cancelling")
            task = self._running.get(batch.id)
            if task is not None:
                task.cancel()
            self._start_next()
        return batch

    def _counted(self, batch: BatchRecord) -> BatchRecord:
        if batch.id not in self._counts:
            return batch
        num_done, num_failed = self._counts[batch.id]
        return msgspec.structs.replace(batch, num_completed=num_done - num_failed, num_failed=num_failed)

    async def _enter(self, batch: BatchRecord, status: BatchStatus, **changes: object) -> BatchRecord:
        times = {**batch.times, status: int(self._clock())}
        found = msgspec.structs.replace(batch, status=status, times=times, **changes)
        await self._shelf.put(found)
        return found

    def _start_next(self) -> None:
        """Starts waiting batches, the oldest first, at most one of each owner at a time."""
        busy = {batch.owner for batch in self._shelf.of() if batch.id in self._running}
        for batch in reversed(self._shelf.of()):
            may_start = not self._is_closed and self._app is not None and len(self._running) < _MAX_RUNNING
            if may_start and not batch.is_finished and batch.owner not in busy:
                busy.add(batch.owner)
                task = asyncio.create_task(self._run(batch), name=f"stoker-{batch.id}")
                self._running[batch.id] = task
                task.add_done_callback(lambda task, batch_id=batch.id: self._note_end(batch_id, task))

    def _note_end(self, batch_id: str, task: asyncio.Task[None]) -> None:
        del self._running[batch_id]
        self._counts.pop(batch_id, None)
        if not task.cancelled() and (fault := task.exception()) is not None:
            logger.error("the batch %s could not be kept: %s", batch_id, type(fault).__name__)
            if not self._is_closed:  # the disk fails, so an immediate retry would fail too
                self._retry = asyncio.get_running_loop().call_later(_RETRY_S, self._start_next)
            return
        self._start_next()

    async def _run(self, batch: BatchRecord) -> None:
        end: BatchStatus = "completed"
        faults: tuple[BatchFault, ...] = ()
        try:
            if batch.status in ("validating", "in_progress"):
                async with asyncio.timeout(max(0.0, batch.expires_at - self._clock())):
                    await self._compute(batch)
        except TimeoutError:
            end = "expired"
        except Exception as error:  # noqa: BLE001  # no HTTP request waits for the batch, so no other border sees it
            end, faults = "failed", (_fault(batch, error),)
        except asyncio.CancelledError:
            if self._is_closed:
                raise
        batch = self._shelf.get(batch.owner, batch.id) or batch
        if batch.status == "cancelling":
            end = "cancelled"
        elif batch.status == "in_progress":
            batch = await self._enter(batch, "finalizing")
        try:
            await self._finish(batch, end, faults)
        except Exception as error:  # noqa: BLE001  # as above
            await self._enter(batch, "failed", faults=(*faults, _fault(batch, error)))

    async def _compute(self, batch: BatchRecord) -> BatchRecord:
        assert self._app is not None, "started without an application"
        record = await self.files.get(batch.owner, batch.input_file_id, "input_file_id")
        source = self.files.path(record)
        lines = await asyncio.to_thread(read_lines, source, record.filename, batch.endpoint, MAX_LINES)
        if batch.status == "validating":
            batch = await self._enter(batch, "in_progress", num_requests=len(lines))
        known = {line.custom_id for line in lines}
        with contextlib.ExitStack() as opened:
            results = await asyncio.to_thread(opened.enter_context, open_results(self.files.answers_path(batch), known))

            def note() -> None:
                self._counts[batch.id] = len(results.done), results.num_failed
                self.files.check_room(batch.owner)

            note()
            await run_batch(
                _Identified(self._app, batch),
                source,
                lines,
                results,
                concurrency=self._concurrency,
                advance=note,
                gate=self._gate,
                max_tries=None,
            )
        return batch

    async def _finish(self, batch: BatchRecord, end: BatchStatus, faults: tuple[BatchFault, ...]) -> None:
        """Writes the output file with the answers and the error file with failed requests. Safe to repeat."""
        path = self.files.answers_path(batch)
        output_id, num_completed = await self._answers(batch, path, "output", is_failed=False)
        error_id, num_failed = await self._answers(batch, path, "error", is_failed=True)
        if end == "completed" and num_completed + num_failed < batch.num_requests:
            end = "expired"  # an earlier process ended while it finished the batch
        await self._enter(
            batch,
            end,
            faults=faults,
            output_file_id=output_id,
            error_file_id=error_id,
            num_completed=num_completed,
            num_failed=num_failed,
        )
        await asyncio.to_thread(_remove, path)

    async def _answers(self, batch: BatchRecord, path: Path, word: str, *, is_failed: bool) -> tuple[str | None, int]:
        upload = await self.files.begin(batch.owner)
        try:
            count = await asyncio.to_thread(_select, path, upload.path, is_failed=is_failed)
            if count == 0:
                return None, 0
            self.files.count_written(upload)
            file_id = f"file-{batch.id.removeprefix('batch_')}-{word}"
            record = await self.files.keep(upload, f"{batch.id}_{word}.jsonl", "batch_output", file_id)
            return record.id, count
        finally:
            await self.files.drop(upload)


def _fault(batch: BatchRecord, error: Exception) -> BatchFault:
    """What the owner of a batch is told of its failure, which is logged."""
    if not isinstance(error, StokerError | OSError):
        log_bug(logger, f"the batch {batch.id}", error)
        bug = internal_error_body().error
        return BatchFault(bug.code or "", bug.message)
    logger.warning("the batch %s failed: %s", batch.id, error)
    if isinstance(error, StokerError):
        line = error.fields.get("line")
        return BatchFault(error.code, error.message, line if isinstance(line, int) else None)
    return BatchFault("disk_error", f"the answers cannot be written: {error.strerror}")


class _Identified:
    """ASGI layer that marks the requests of one batch for `BatchBorder`."""

    def __init__(self, app: ASGIApp, batch: BatchRecord) -> None:
        self._app = app
        self._batch = batch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"] = {BATCH: self._batch}
        await self._app(scope, receive, send)


BATCH = "batch"
"""Key in a scope's state: the `BatchRecord` that the request belongs to."""


class BatchBorder:
    """ASGI layer that replaces `AccessControl` for requests of batches, inside of `RequestBorder`.

    The requests get the key name of their batch, an owner derived from the batch's owner, and at most the priority
    `PRIORITY`. They may not administer the server.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        batch: BatchRecord = scope["state"][BATCH]
        account = account_of(scope)
        account.key_name, account.max_priority = batch.key_name, PRIORITY
        grant(scope, owner=f"batch {batch.owner}")
        await self._app(scope, receive, send)


def _select(path: Path, target: Path, *, is_failed: bool) -> int:
    """Copies the lines of failed, or else of successful, requests to another file, and returns their number."""
    count = 0
    with contextlib.suppress(FileNotFoundError), path.open("rb") as lines, target.open("wb") as chosen:
        for line in lines:
            if not line.endswith(b"\n"):
                break  # the process was killed while it wrote this line
            if (msgspec.json.decode(line, type=Result).response.status_code >= 400) == is_failed:
                chosen.write(line)
                count += 1
    return count


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    Path(f"{path}.lock").unlink(missing_ok=True)
