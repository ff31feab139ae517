"""The directory of packed weights: a graph as ONNX Runtime packed it, written by one process, mapped by all.

```
packed/<fingerprint>.onnx/     model.onnx, model.data, and last `whole.json`: how long both are
packed/.<fingerprint>.lock     held by the process that packs
packed/.<fingerprint>.part/    a folder under way, renamed in the end
```

It knows files only; who packs is told where to.
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
"""What is written has the weights as they were and packed, and those that two operators share twice."""
_WAIT_S = 600.0
"""Longest wait for another process that packs the same model; after that this one keeps its own copy in memory."""
_CPU_INFO = Path("/proc/cpuinfo")


def fingerprint(graph: GraphFile, version: str) -> str:
    """Names a packed graph: its files by place, size and time, what runs it, and the processor, which decides how.

    Args:
        graph: the file.
        version: of ONNX Runtime.
    """
    digest = hashlib.sha256(f"1 {version} {platform.machine()} {_processor()}\n".encode())
    digest.update(graph.content or b"")
    for path in graph.weight_files:
        status = path.stat()
        digest.update(f"{os.path.realpath(path)} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:40]


def _processor() -> str:
    """What it is called and can do."""
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.lower().startswith(("model name", "flags", "features"))}))


class PackedFolders:
    """Packed graphs in `directory`, which together with the newest may take `max_bytes`."""

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self._directory = directory
        self._max_bytes = max_bytes

    def open(self, name: str, weights_bytes: int, pack: Callable[[Path], None]) -> Path | None:
        """The packed graph's folder, which `pack` fills first if it is not there.

        Args:
            name: see `fingerprint`.
            weights_bytes: before they are packed.
            pack: writes `MODEL` and `WEIGHTS` into a folder that exists and is empty.

        Returns:
            None, after one line in the log, if the directory or the disk does not take it.
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
        shutil.rmtree(part, ignore_errors=True)  # of a process that died: we hold the lock
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
        """Removes what was not opened for longest until the rest and the new one are small enough.

        Raises:
            OSError: the disk has not so much.
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
    """Says that everything is there, when it is on the disk."""
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
    with suppress(OSError):  # read-only: then no process removes by age either
        os.utime(folder)
    return is_whole


def _sizes(folder: Path) -> dict[str, int]:
    return {file: (folder / file).stat().st_size for file in (MODEL, WEIGHTS)}


def _opened_ns(folder: Path) -> int:
    try:
        return folder.stat().st_mtime_ns
    except OSError:  # another process removes folders too
        return 0


def _size(folder: Path) -> int:
    try:
        return sum(_sizes(folder).values())
    except OSError:
        return 0
