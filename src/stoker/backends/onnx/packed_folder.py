"""The directory of packed weights: graphs that ONNX Runtime packed, written by one process, mapped by all.

```
packed/<fingerprint>.onnx/     model.onnx, model.data, and, written last, `whole.json` with the sizes of both
packed/.<fingerprint>.lock     held by the process that packs
packed/.<fingerprint>.part/    an unfinished folder, renamed when it is complete
```

This module only manages files; the caller's function packs.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from filelock import FileLock
from filelock import Timeout as LockTimeout

from stoker.backends.onnx.file import GraphFile

logger = logging.getLogger(__name__)

MODEL, WEIGHTS = "model.onnx", "model.data"
_NOTE = "whole.json"
_SUFFIX = ".onnx"
_GROWTH = 3
"""Maximum size of a packed folder relative to the weights: it has the original and the packed weights, and those that
two operators share twice."""
_WAIT_S = 600.0
"""Longest wait for another process that packs the same model; then this process packs into its own memory."""
_CPU_INFO = Path("/proc/cpuinfo")


def fingerprint(graph: GraphFile, version: str) -> str:
    """The name of a packed graph: a digest of its files (path, size, time), ONNX Runtime's version, and the processor.

    Args:
        graph: the file.
        version: version of ONNX Runtime. Version and processor determine how weights are packed.
    """
    digest = hashlib.sha256(f"1 {version} {platform.machine()} {_processor()}\n".encode())
    digest.update(graph.content or b"")
    for path in graph.weight_files:
        status = path.stat()
        digest.update(f"{os.path.realpath(path)} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:40]


def _processor() -> str:
    """The name and the features of this machine's processor."""
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.lower().startswith(("model name", "flags", "features"))}))


class PackedFolders:
    """The packed graphs in `directory`, whose total size is limited to `max_bytes`, including the newest graph."""

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self._directory = directory
        self._max_bytes = max_bytes

    def open(self, name: str, weights_bytes: int, pack: Callable[[Path], None]) -> Path | None:
        """Returns the folder of a packed graph; `pack` fills it first if there is none.

        Args:
            name: see `fingerprint`.
            weights_bytes: size of the weights before they are packed.
            pack: writes `MODEL` and `WEIGHTS` into a folder that exists and is empty.

        Returns:
            The folder; None, after a warning in the log, if it cannot be written.
        """
        target = self._directory / f"{name}{_SUFFIX}"
        if _is_whole(target):
            return target
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with FileLock(self._directory / f".{name}.lock", timeout=_WAIT_S):
                if not _is_whole(target):
                    self._write(target, name, weights_bytes, pack)
        except (OSError, LockTimeout) as error:
            logger.warning("each replica packs its weights for itself: %s", error)
            return None
        return target

    def _write(self, target: Path, name: str, weights_bytes: int, pack: Callable[[Path], None]) -> None:
        part = self._directory / f".{name}.part"
        shutil.rmtree(part, ignore_errors=True)  # left by a dead process: this one holds the lock
        shutil.rmtree(target, ignore_errors=True)
        self._make_room(_GROWTH * weights_bytes)
        part.mkdir()
        try:
            pack(part)
            _finish(part)
            part.rename(target)
        finally:
            shutil.rmtree(part, ignore_errors=True)

    def _make_room(self, num_bytes: int) -> None:
        """Removes the least recently opened folders until the others and the new folder are within the limit.

        Raises:
            OSError: the disk does not have enough free space.
        """
        others = sorted((_opened_ns(other), other) for other in self._directory.glob(f"*{_SUFFIX}"))
        left = self._max_bytes - num_bytes - sum(_size(other) for _, other in others)
        for _, other in others:
            if left < 0:
                logger.info("removing the packed weights %s", other)
                left += _size(other)
                shutil.rmtree(other, ignore_errors=True)
        free = shutil.disk_usage(self._directory).free
        if free < num_bytes:
            raise OSError(f"{self._directory} has {free >> 20} MiB left, and {num_bytes >> 20} MiB may be needed")


def _finish(folder: Path) -> None:
    """Syncs the files to disk, then marks the folder as complete."""
    for file in (MODEL, WEIGHTS):
        handle = os.open(folder / file, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    (folder / _NOTE).write_text(json.dumps(_sizes(folder)))


def _is_whole(folder: Path) -> bool:
    try:
        is_whole = json.loads((folder / _NOTE).read_text()) == _sizes(folder)
    except (OSError, ValueError):
        return False
    with suppress(OSError):  # a read-only directory, from which nothing is removed
        os.utime(folder)
    return is_whole


def _sizes(folder: Path) -> dict[str, int]:
    return {file: (folder / file).stat().st_size for file in (MODEL, WEIGHTS)}


def _opened_ns(folder: Path) -> int:
    try:
        return folder.stat().st_mtime_ns
    except OSError:  # other processes remove folders, too
        return 0


def _size(folder: Path) -> int:
    try:
        return sum(_sizes(folder).values())
    except OSError:
        return 0
