"""The results file of a batch: one line per answered request. It stays consistent if the process is killed."""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from filelock import FileLock, Timeout

from stoker.errors import InvalidInput

_LINE_BREAKS = {character.encode(): f"\\u{ord(character):04x}".encode() for character in "\x85\u2028\u2029"}
"""Characters that readers such as Python's `str.splitlines` take for the end of a line, and their JSON escapes."""


class Response(msgspec.Struct, kw_only=True):
    """The answer of an endpoint to one request."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class Result(msgspec.Struct, kw_only=True):
    """One line of the results file."""

    id: str = msgspec.field(default_factory=lambda: f"batch_req_{uuid.uuid4().hex}")
    custom_id: str
    response: Response
    error: Any = None


class Results:
    """A results file that is open for further lines.

    Args:
        path: path of the file.
        file: a file descriptor that appends to the file.
        done: the `custom_id` of every request that has a line.
        num_failed: number of lines whose request was refused or failed.
    """

    def __init__(self, path: Path, file: int, done: set[str], num_failed: int) -> None:
        self._path = path
        self._file = file
        self.done = done
        self.num_failed = num_failed

    def add(self, result: Result) -> None:
        """Appends one line.

        Raises:
            OSError: the line cannot be written; a part that was written is removed.
        """
        line = _on_one_line(msgspec.json.encode(result)) + b"\n"
        end = os.lseek(self._file, 0, os.SEEK_END)
        try:
            written = 0
            while written < len(line):
                written += os.write(self._file, line[written:])
        except OSError:
            os.ftruncate(self._file, end)
            raise
        self.done.add(result.custom_id)
        self.num_failed += result.response.status_code >= 400


def _on_one_line(json: bytes) -> bytes:
    for raw, spelled in _LINE_BREAKS.items():
        json = json.replace(raw, spelled)
    return json


@contextmanager
def open_results(path: Path, known: Collection[str]) -> Generator[Results]:
    """Opens a results file for this process alone. An incomplete last line is removed, and its request computed again.

    Args:
        path: path of the file, created if it is missing.
        known: the `custom_id` of every request of the batch.

    Raises:
        InvalidInput: the file belongs to another batch, another process writes it, or it cannot be written.
    """
    lock = FileLock(f"{path}.lock", timeout=0)
    try:
        lock.acquire()
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    except Timeout as error:
        raise InvalidInput(f"another process writes {path}", parameter="--output") from error
    except OSError as error:
        lock.release()
        raise InvalidInput(f"{path} cannot be written: {error.strerror}", parameter="--output") from error
    try:
        yield _resumed(path, file, known)
    finally:
        os.close(file)
        lock.release()


def answered(path: Path) -> Iterator[tuple[bytes, Result]]:
    """The lines of a results file with their meaning; nothing if there is no file.

    A last line that is incomplete is left out, because the process was killed while it wrote the line.
    """
    with suppress(FileNotFoundError), path.open("rb") as lines:
        for line in lines:
            if line.endswith(b"\n"):
                yield line, msgspec.json.decode(line, type=Result)


def _resumed(path: Path, file: int, known: Collection[str]) -> Results:
    done: set[str] = set()
    num_failed = end = 0
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                break
            result = _decoded(path, number, line)
            if result.custom_id not in known or result.custom_id in done:
                message = (
                    f"{path}, line {number}: `custom_id` {result.custom_id!r} is not of this batch, or is there twice"
                )
                raise InvalidInput(f"{message}. Name another file", parameter="--output")
            done.add(result.custom_id)
            num_failed += result.response.status_code >= 400
            end += len(line)
    os.ftruncate(file, end)
    return Results(path, file, done, num_failed)


def _decoded(path: Path, number: int, line: bytes) -> Result:
    try:
        return msgspec.json.decode(line, type=Result)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        message = f"{path}, line {number} is not a line of a batch: {error}. Name another file"
        raise InvalidInput(message, parameter="--output") from error
