"""Batches of clients: accepts them, computes them after all interactive requests, and resumes them after a restart."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Callable

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from stoker.errors import BatchNotFound, InvalidInput, Overloaded, ResourceExhausted, StokerError
from stoker.server.access.control import grant, owner_of
from stoker.server.batches.files import OF_A_BATCH, FileStore, Upload, disk_full, owner_tag
from stoker.server.batches.lines import read_lines
from stoker.server.batches.message_results import write_results
from stoker.server.batches.outputs import Written, discard_answers, write_outputs
from stoker.server.batches.records import MESSAGES_URL, BatchFault, BatchRecord, BatchStatus
from stoker.server.batches.results import open_results
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
"""Maximum number of finished batches of one owner and one API; the oldest are removed when a new one is created."""
MAX_LINES = 50_000
MAX_MESSAGES = 100_000
"""Maximum number of requests in a batch of Anthropic's clients."""
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
            ResourceExhausted: the batch cannot be stored on disk.
        """
        await self.files.get(owner, input_file_id, "input_file_id")
        self.check_vacancy(owner)
        now = int(self._clock())
        batch = _new(f"batch_{uuid.uuid4().hex}", owner, key_name, endpoint, input_file_id, now)
        return await self._accept(msgspec.structs.replace(batch, metadata=metadata))

    async def create_of_messages(self, owner: str, key_name: str, requests: Upload, num_requests: int) -> BatchRecord:
        """Accepts a batch of Anthropic's clients.

        Its id begins with the time of its creation, so that a list can go on after a batch that was deleted.

        Args:
            owner: owner of the batch.
            key_name: name of the API key.
            requests: file of the checked requests in OpenAI's format; kept, unless this fails.
            num_requests: number of requests in the file.

        Raises:
            Overloaded: too many batches of the owner are unfinished.
            ResourceExhausted: the requests or the batch cannot be stored on disk.
        """
        self.check_vacancy(owner)
        now = int(self._clock())
        name = f"{now:08x}{uuid.uuid4().hex[8:]}"
        stored = await self.files.keep(requests, f"{name}.jsonl", OF_A_BATCH, f"file-{name}-requests")
        batch = _new(f"msgbatch_{name}", owner, key_name, MESSAGES_URL, stored.id, now)
        try:
            return await self._accept(msgspec.structs.replace(batch, status="in_progress", num_requests=num_requests))
        except Exception:
            with contextlib.suppress(OSError):
                await self.files.delete(stored)
            raise

    def check_vacancy(self, owner: str) -> None:
        """Raises Overloaded if too many batches of this owner are unfinished."""
        if sum(not batch.is_finished for batch in self._shelf.of(owner)) >= MAX_UNFINISHED:
            raise Overloaded(f"{MAX_UNFINISHED} batches of this API key are not finished yet", retry_after_s=60.0)

    def get(self, owner: str, batch_id: str, *, is_of_messages: bool = False) -> BatchRecord:
        """A batch as it is now.

        Args:
            owner: owner of the batch.
            batch_id: id of the batch.
            is_of_messages: whether the batch must be of Anthropic's clients; else it must be of OpenAI's.

        Raises:
            BatchNotFound: the owner has no such batch.
        """
        batch = self._shelf.get(owner, batch_id)
        if batch is None or batch.is_of_messages != is_of_messages:
            raise BatchNotFound(f"there is no batch {batch_id[:100]!r}", batch_id=batch_id[:100], parameter="batch_id")
        return self._counted(batch)

    def all_of(self, owner: str, *, is_of_messages: bool = False) -> list[BatchRecord]:
        """The batches of this owner, either of Anthropic's clients or of OpenAI's, the newest first."""
        return [self._counted(batch) for batch in self._shelf.of(owner) if batch.is_of_messages == is_of_messages]

    def reads(self, owner: str, file_id: str) -> BatchRecord | None:
        """The unfinished batch that has this file as its input; None if there is none."""
        own = (batch for batch in self._shelf.of(owner) if not batch.is_finished)
        return next((batch for batch in own if batch.input_file_id == file_id), None)

    async def cancel(self, owner: str, batch_id: str, *, is_of_messages: bool = False) -> BatchRecord:
        """Cancels a batch; finished answers are kept. Does nothing if the output is being written already.

        Raises:
            BatchNotFound: see `get`.
            InvalidInput: it is finished.
        """
        batch = self.get(owner, batch_id, is_of_messages=is_of_messages)
        if batch.is_finished:
            raise InvalidInput(f"the batch {batch_id} is {batch.status} already", parameter="batch_id")
        if batch.status not in ("cancelling", "finalizing"):
            batch = await self._enter(batch, "cancelling")
            task = self._running.get(batch.id)
            if task is not None and batch.status == "cancelling":
                task.cancel()
            self._start_next()
        return batch

    async def delete_of_messages(self, owner: str, batch_id: str) -> BatchRecord:
        """Deletes a batch of Anthropic's clients with its results.

        Raises:
            BatchNotFound: see `get`.
            InvalidInput: it is not finished.
        """
        batch = self.get(owner, batch_id, is_of_messages=True)
        if not batch.is_finished:
            raise InvalidInput(f"the batch {batch_id} is not finished; cancel it first", parameter="batch_id")
        await self._delete(batch)
        return batch

    async def _delete(self, batch: BatchRecord) -> None:
        await self._shelf.remove(batch)
        await self._discard(batch, batch.input_file_id, *batch.own_files)

    async def _discard(self, batch: BatchRecord, *file_ids: str) -> None:
        """Deletes the answers of a finished batch and those of the files that belong to it alone.

        What cannot be deleted is deleted at the next start.
        """
        try:
            for file_id in file_ids:
                await self.files.delete_of_batch(batch.owner, file_id)
            await asyncio.to_thread(discard_answers, self.files.answers_path(batch))
        except OSError as error:
            logger.warning("files of the batch %s cannot be deleted: %s", batch.id, error.strerror)

    async def _accept(self, batch: BatchRecord) -> BatchRecord:
        own = self.all_of(batch.owner, is_of_messages=batch.is_of_messages)
        try:
            for old in [other for other in own if other.is_finished][MAX_KEPT - 1 :]:
                await self._delete(old)
            await self._shelf.put(batch)
        except OSError as error:
            raise disk_full(error) from error
        self._start_next()
        return batch

    def _counted(self, batch: BatchRecord) -> BatchRecord:
        if batch.is_finished or batch.id not in self._counts:
            return batch
        num_done, num_failed = self._counts[batch.id]
        return msgspec.structs.replace(batch, num_completed=num_done - num_failed, num_failed=num_failed)

    async def _enter(self, batch: BatchRecord, status: BatchStatus, **changes: object) -> BatchRecord:
        """Changes the record, whatever has changed it since `batch` was read."""
        now = int(self._clock())
        return await self._shelf.update(batch, lambda found: found.entered(status, now, **changes))

    def _start_next(self) -> None:
        """Starts waiting batches, the oldest first, at most one of each owner at a time.

        A batch that only has to be finished does not wait for another one.
        """
        busy = {batch.owner for batch in self._shelf.of() if batch.id in self._running}
        for batch in reversed(self._shelf.of()):
            is_computed = batch.status in ("cancelling", "finalizing")
            has_room = is_computed or (len(self._running) < _MAX_RUNNING and batch.owner not in busy)
            may_start = has_room and not batch.is_finished and batch.id not in self._running
            if may_start and not self._is_closed and self._app is not None:
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
        faults = batch.faults
        end: BatchStatus = "failed" if faults else "completed"
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
            batch = await self._enter(batch, "finalizing", faults=faults)
        try:
            await self._finish(batch, end, faults)
        except Exception as error:
            if isinstance(error, OSError | ResourceExhausted) and self._clock() < batch.expires_at + WINDOW_S:
                raise  # the answers are kept, and are written when the disk has room
            await self._enter(batch, "failed", faults=(*faults, _fault(batch, error)))
        await self._discard(batch, batch.input_file_id)

    async def _compute(self, batch: BatchRecord) -> BatchRecord:
        assert self._app is not None, "started without an application"
        is_own = batch.is_of_messages
        record = await self.files.get(batch.owner, batch.input_file_id, "input_file_id", is_of_batch=is_own)
        source = self.files.path(record)
        max_lines = MAX_MESSAGES if is_own else MAX_LINES
        lines = await asyncio.to_thread(read_lines, source, record.filename, batch.endpoint, max_lines)
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
        """Writes the files in which the client finds the answers. Safe to repeat."""
        written = await self._write(batch, end, faults)
        if end == "completed" and written.num_completed + written.num_failed < batch.num_requests:
            end = "expired"  # an earlier process ended while it finished the batch
        await self._enter(batch, end, faults=faults, **msgspec.structs.asdict(written))

    async def _write(self, batch: BatchRecord, end: BatchStatus, faults: tuple[BatchFault, ...]) -> Written:
        if batch.is_of_messages:
            return await write_results(self.files, batch, end, faults)
        return await write_outputs(self.files, batch)


def _new(batch_id: str, owner: str, key_name: str, endpoint: str, input_file_id: str, now: int) -> BatchRecord:
    return BatchRecord(
        id=batch_id,
        owner=owner,
        key_name=key_name,
        endpoint=endpoint,
        input_file_id=input_file_id,
        completion_window="24h",
        metadata=None,
        status="validating",
        created_at=now,
        expires_at=now + WINDOW_S,
        times={"validating": now},
    )


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


def owner_in_store(scope: Scope) -> str:
    """Owner of the stored files that a request may name: that of the batch to which the request belongs, if any."""
    batch: BatchRecord | None = scope["state"].get(BATCH)
    return owner_tag(owner_of(scope)) if batch is None else batch.owner


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
