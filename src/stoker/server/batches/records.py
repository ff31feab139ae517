"""Records of files and batches. Each is a small JSON file on disk, and all are held in memory too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from logging import getLogger
from pathlib import Path
from typing import Generic, Literal, Protocol, TypeAlias, TypeVar

import msgspec

from stoker.models.whole_files import write_whole

logger = getLogger(__name__)

BatchStatus: TypeAlias = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]
MESSAGES_URL = "/v1/messages"
"""The endpoint of all requests in a batch of Anthropic's clients."""
_STAGES: Mapping[BatchStatus, int] = {"validating": 0, "in_progress": 1, "cancelling": 2, "finalizing": 2}
"""The states of an unfinished batch. A state is entered only from a smaller number."""
_FINISHED = 3


class FileRecord(msgspec.Struct, kw_only=True, frozen=True):
    """One stored file. Times are Unix time in seconds."""

    id: str
    owner: str
    filename: str
    purpose: str
    num_bytes: int
    created_at: int
    expires_at: int | None = None
    mime_type: str = ""
    """MIME type that the client gave; empty = none."""


class BatchFault(msgspec.Struct, frozen=True):
    """The error that made a whole batch fail."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchRecord(msgspec.Struct, kw_only=True, frozen=True):
    """One batch. Times are Unix time in seconds."""

    id: str
    owner: str
    key_name: str
    """Name of the API key, for fairness, metrics and the log."""
    endpoint: str
    input_file_id: str
    completion_window: str
    metadata: dict[str, str] | None
    status: BatchStatus
    created_at: int
    expires_at: int
    times: dict[BatchStatus, int] = {}
    """Time at which each status began."""
    num_requests: int = 0
    num_completed: int = 0
    """Number of successful requests; valid only for a finished batch, `Batches` counts those of a running one."""
    num_failed: int = 0
    output_file_id: str | None = None
    error_file_id: str | None = None
    faults: tuple[BatchFault, ...] = ()

    @property
    def is_finished(self) -> bool:
        return self.status not in _STAGES

    def entered(self, status: BatchStatus, time_s: int, **changes: object) -> BatchRecord:
        """This batch with changes, and in another state unless it is in a state as late already; itself if finished."""
        if self.is_finished:
            return self
        if _STAGES.get(status, _FINISHED) <= _STAGES[self.status]:
            return msgspec.structs.replace(self, **changes) if changes else self
        return msgspec.structs.replace(self, status=status, times={**self.times, status: time_s}, **changes)

    @property
    def is_of_messages(self) -> bool:
        """Whether an Anthropic client created the batch; else an OpenAI client did."""
        return self.endpoint == MESSAGES_URL

    @property
    def own_files(self) -> tuple[str, ...]:
        """The ids of the files that belong to the batch alone, and that clients do not see."""
        if not self.is_of_messages:
            return ()
        requests = () if self.is_finished else (self.input_file_id,)
        return requests if self.output_file_id is None else (*requests, self.output_file_id)


class _Record(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def owner(self) -> str: ...
    @property
    def created_at(self) -> int: ...


RecordT = TypeVar("RecordT", bound=_Record)


class Shelf(Generic[RecordT]):
    """All records of one kind. Belongs to one event loop; the disk is written on other threads.

    Args:
        folder: folder for the records and for the content that they describe; created if it is missing.
        kind: type of the records.

    Raises:
        OSError: the folder cannot be made or read.
    """

    def __init__(self, folder: Path, kind: type[RecordT]) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._kind = kind
        self._records = {record.id: record for record in self._read()}
        self._writing = asyncio.Lock()

    def get(self, owner: str, record_id: str) -> RecordT | None:
        """The record of this id; None if there is none or it has another owner."""
        found = self._records.get(record_id)
        return found if found is not None and found.owner == owner else None

    def of(self, owner: str | None = None) -> list[RecordT]:
        """The records of an owner, or of all owners if None, the newest first."""
        found = [record for record in self._records.values() if owner in (None, record.owner)]
        return sorted(found, key=lambda record: (record.created_at, record.id), reverse=True)

    async def put(self, record: RecordT) -> None:
        """Stores a record, and replaces any record with the same id.

        Raises:
            OSError: the record cannot be written to disk.
        """
        async with self._writing:
            await self._replace(record)

    async def update(self, record: RecordT, change: Callable[[RecordT], RecordT]) -> RecordT:
        """Changes a record as it is when all writes before this one have ended, and returns it as it is stored then.

        Does nothing, and returns `record`, if there is none of its id any longer.

        Args:
            record: the record; only its id counts.
            change: returns the new content for the content that is stored; the same object = it stays.

        Raises:
            OSError: the record cannot be written to disk, and stays as it was.
        """
        async with self._writing:
            found = self._records.get(record.id)
            if found is None:
                return record
            changed = change(found)
            if changed is not found:
                await self._replace(changed)
            return changed

    async def remove(self, record: RecordT) -> None:
        """Deletes a record."""
        async with self._writing:
            self._records.pop(record.id, None)
            await asyncio.to_thread(self._path(record.id).unlink, missing_ok=True)

    def discard(self, record: RecordT) -> None:
        """Deletes a record, and waits for the disk."""
        self._records.pop(record.id, None)
        self._path(record.id).unlink(missing_ok=True)

    async def _replace(self, record: RecordT) -> None:
        await asyncio.to_thread(self._write, record)
        self._records[record.id] = record

    def _read(self) -> Iterator[RecordT]:
        for path in sorted(self._folder.glob("*.json")):
            try:
                yield msgspec.json.decode(path.read_bytes(), type=self._kind)
            except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
                logger.warning("%s is ignored: %s", path, error)

    def _write(self, record: RecordT) -> None:
        write_whole(self._path(record.id), msgspec.json.encode(record))

    def _path(self, record_id: str) -> Path:
        return self._folder / f"{record_id}.json"
