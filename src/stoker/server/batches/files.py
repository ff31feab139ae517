"""The store for files of clients, on disk. Each file is visible to its owner only, and each owner's total is bounded.

```
<folder>/.lock               held by the server that uses the folder
         files/<id>          content
         files/<id>.json     `FileRecord`
         batches/<id>.json   `BatchRecord`
         batches/<id>.jsonl  the answers of a batch that is not finished
```
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout

from stoker.errors import ConfigError, FileNotStored, InvalidInput, ResourceExhausted
from stoker.server.batches.records import BatchRecord, FileRecord, Shelf

MAX_FILES = 10_000
"""Maximum number of files per owner."""
OF_A_BATCH = "message_batch"
"""Purpose of the files that belong to a batch alone, see `BatchRecord.own_files`. Clients do not see them."""
_MIB = 2**20


@dataclass(slots=True)
class Upload:
    """A file that is being written. Its bytes count toward the owner's limit from the first one on."""

    owner: str
    path: Path
    file: BinaryIO
    num_bytes: int = 0
    filename: str = ""
    mime_type: str = ""
    """MIME type that the client gives; empty = none."""
    fields: dict[str, str] = field(default_factory=dict[str, str])


class FileStore:
    """All files under one folder. Belongs to one event loop.

    Args:
        folder: the folder, created if it is missing.
        max_mib: maximum total size of the files of one owner, in MiB.
        clock: returns Unix time in seconds.

    Raises:
        ConfigError: the folder cannot be used, or another server uses it.
    """

    def __init__(self, folder: Path, max_mib: int, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._max_bytes = max_mib * _MIB
        self._clock = clock
        self._uploading: Counter[str] = Counter()
        self.answers_folder = folder / "batches"
        """Folder with the answers of unfinished batches."""
        self._lock = FileLock(folder / ".lock", timeout=0)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock.acquire()
            self._shelf = Shelf(folder / "files", FileRecord)
            self.batches = Shelf(self.answers_folder, BatchRecord)
            for left in (folder / "files").glob("*.part"):
                left.unlink()
            self._discard_unowned()
        except Timeout as error:
            raise ConfigError(f"another server uses the folder {folder}", key="files_dir") from error
        except OSError as error:
            self._lock.release()
            raise ConfigError(f"the folder {folder} cannot be used: {error.strerror}", key="files_dir") from error

    def close(self) -> None:
        """Releases the lock, so that another server may use the folder."""
        self._lock.release()

    def path(self, record: FileRecord) -> Path:
        """The path of a file's content."""
        return self._folder / "files" / record.id

    async def get(
        self, owner: str, file_id: str, parameter: str = "file_id", *, is_of_batch: bool = False
    ) -> FileRecord:
        """A file of this owner.

        Args:
            owner: owner of the file.
            file_id: id of the file.
            parameter: name of the field with the id, for the error.
            is_of_batch: whether the file must belong to a batch alone; else it must not.

        Raises:
            FileNotStored: the owner has no such file.
        """
        await self._drop_expired(owner)
        record = self._shelf.get(owner, file_id)
        if record is None or (record.purpose == OF_A_BATCH) != is_of_batch:
            message = f"the file {file_id[:100]!r} is not stored here, or no longer"
            raise FileNotStored(message, file_id=file_id[:100], parameter=parameter)
        return record

    async def all_of(self, owner: str) -> list[FileRecord]:
        """The files of this owner that clients see, the newest first."""
        await self._drop_expired(owner)
        return [record for record in self._shelf.of(owner) if record.purpose != OF_A_BATCH]

    async def delete(self, record: FileRecord) -> None:
        """Deletes a file."""
        await self._shelf.remove(record)
        await asyncio.to_thread(self.path(record).unlink, missing_ok=True)

    async def delete_of_batch(self, owner: str, file_id: str) -> None:
        """Deletes a file that belongs to a batch alone; does nothing if there is none."""
        record = self._shelf.get(owner, file_id)
        if record is not None and record.purpose == OF_A_BATCH:
            await self.delete(record)

    async def begin(self, owner: str, *, is_output: bool = False) -> Upload:
        """Opens a new file of this owner. The caller must call `keep` or `drop` afterwards.

        Args:
            owner: owner of the file.
            is_output: whether the file has the answers of a batch, so that it is opened beside any number of files.

        Raises:
            InvalidInput: the owner has too many files.
            ResourceExhausted: the file cannot be created on disk.
        """
        if len(self._shelf.of(owner)) >= MAX_FILES and not is_output:
            raise InvalidInput(f"there are {MAX_FILES} files of this API key already; delete some", parameter="file")
        path = self._folder / "files" / f"{uuid.uuid4().hex}.part"
        try:
            return Upload(owner, path, path.open("xb"))  # not on a thread: if this were canceled, it would stay open
        except OSError as error:
            raise disk_full(error) from error

    async def write(self, upload: Upload, data: bytes) -> None:
        """Adds bytes to a new file.

        Raises:
            InvalidInput: the owner's files would exceed the owner's limit.
            ResourceExhausted: the bytes cannot be written to disk.
        """
        upload.num_bytes += len(data)
        self._uploading[upload.owner] += len(data)
        self.check_room(upload.owner)
        try:
            await asyncio.to_thread(upload.file.write, data)
        except OSError as error:
            raise disk_full(error) from error

    def count_written(self, upload: Upload) -> None:
        """Counts bytes that were written to a new file without `write`, even beyond the owner's limit."""
        upload.num_bytes = _size(upload.path)
        self._uploading[upload.owner] += upload.num_bytes

    async def keep(
        self, upload: Upload, filename: str, purpose: str, file_id: str | None = None, lives_s: int | None = None
    ) -> FileRecord:
        """Stores a new file that is complete, and returns its record.

        Args:
            upload: the file, completely written.
            filename: name for display.
            purpose: use of the file, as the client declares it.
            file_id: id of the file, which replaces any file of that id; None = a new id.
            lives_s: seconds after which the file is deleted; None = never.

        Raises:
            ResourceExhausted: the file cannot be stored on disk.
        """
        now = int(self._clock())
        record = FileRecord(
            id=file_id or f"file-{uuid.uuid4().hex}",
            owner=upload.owner,
            filename=filename,
            purpose=purpose,
            num_bytes=upload.num_bytes,
            mime_type=upload.mime_type,
            created_at=now,
            expires_at=None if lives_s is None else now + lives_s,
        )
        try:
            await asyncio.to_thread(_finish, upload, self.path(record))
            await self._shelf.put(record)
        except OSError as error:
            await self._discard_unrecorded(record)
            raise disk_full(error) from error
        self._uploading[upload.owner] -= upload.num_bytes
        upload.num_bytes = 0
        return record

    async def _discard_unrecorded(self, record: FileRecord) -> None:
        if self._shelf.get(record.owner, record.id) is None:
            with suppress(OSError):
                await asyncio.to_thread(self.path(record).unlink, missing_ok=True)

    async def drop(self, upload: Upload) -> None:
        """Discards a new file; does nothing if `keep` has stored it."""
        self._uploading[upload.owner] -= upload.num_bytes
        upload.num_bytes = 0
        await asyncio.to_thread(_discard, upload)

    def check_room(self, owner: str) -> None:
        """Checks that an owner's files, uploads and answers of unfinished batches are within the owner's limit.

        Raises:
            InvalidInput: they exceed the limit.
        """
        stored = sum(record.num_bytes for record in self._shelf.of(owner)) + self._uploading[owner]
        answers = sum(_size(self.answers_path(batch)) for batch in self.batches.of(owner) if not batch.is_finished)
        if stored + answers > self._max_bytes:
            limit = f"{self._max_bytes // _MIB} MiB (--files-mib)"
            message = f"the files and batches of this API key would take more than {limit}; delete some"
            raise InvalidInput(message, parameter="file")

    def answers_path(self, batch: BatchRecord) -> Path:
        """The path of a batch's answers until the batch is finished."""
        return self.answers_folder / f"{batch.id}.jsonl"

    def _discard_unowned(self) -> None:
        """Deletes the files of batches that are gone: an earlier process may have ended between the two."""
        owned = {file_id for batch in self.batches.of() for file_id in batch.own_files}
        for record in self._shelf.of():
            if record.purpose == OF_A_BATCH and record.id not in owned:
                self.path(record).unlink(missing_ok=True)
                self._shelf.discard(record)
        unfinished = {self.answers_path(batch) for batch in self.batches.of() if not batch.is_finished}
        for path in self.answers_folder.glob("*.jsonl*"):
            if path.with_name(path.name.removesuffix(".lock")) not in unfinished:
                path.unlink(missing_ok=True)

    async def _drop_expired(self, owner: str) -> None:
        now = self._clock()
        for record in self._shelf.of(owner):
            if record.expires_at is not None and record.expires_at <= now:
                await self.delete(record)


def owner_tag(owner: str) -> str:
    """An owner's name on disk: a prefixed digest, so that files of another server do not help to guess an API key."""
    return sha256(b"stoker files\0" + owner.encode()).hexdigest()[:32]


def _finish(upload: Upload, path: Path) -> None:
    with upload.file:
        upload.file.flush()
        os.fsync(upload.file.fileno())
    os.replace(upload.path, path)


def _discard(upload: Upload) -> None:
    upload.file.close()
    upload.path.unlink(missing_ok=True)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def disk_full(error: OSError) -> ResourceExhausted:
    """The error of a request whose files cannot be written to disk."""
    return ResourceExhausted(f"the disk takes no more of the files of clients: {error.strerror}")
