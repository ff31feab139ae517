"""Reads untrusted PDF files, each in a separate process, and keeps the pages for the next turn."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import threading
from collections import OrderedDict
from hashlib import sha256
from importlib.util import find_spec
from typing import TypeAlias

from stoker.errors import BackendError, InvalidInput, UnsupportedParameter, reason_of
from stoker.media.decode_program import DONE, REFUSED
from stoker.media.pages import MAX_PICTURE_BYTES, MAX_TEXT, Page, pages_decoder

_PROGRAM = (sys.executable, "-I", "-m", "stoker.media.document_program")
_MAX_ANSWER_BYTES = MAX_PICTURE_BYTES + 8 * MAX_TEXT
_MAX_KEPT_BYTES = 64 << 20
_MAX_REFUSED = 1024
_AT_A_TIME = 2
_WAIT_S = 60.0
_LIBRARIES = ("pypdf", "pypdfium2", "PIL")

_Key: TypeAlias = tuple[bytes, int]
"""Digest of a file, and the size of the images of its pages."""


class DocumentReader:
    """Safe to use from several threads; each call waits for at most about a minute, in the end.

    Args:
        program: the command that reads one file.
        max_kept_bytes: of pages that are kept, least recently used first to go.
    """

    def __init__(self, program: tuple[str, ...] = _PROGRAM, *, max_kept_bytes: int = _MAX_KEPT_BYTES) -> None:
        self._program = program
        self._max_kept_bytes = max_kept_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[_Key, bytes] = OrderedDict()
        """Answers of the process."""
        self._refused: OrderedDict[_Key, str] = OrderedDict()
        """Reasons for refusals."""
        self._turns = threading.BoundedSemaphore(_AT_A_TIME)
        self.num_read = 0

    def pages(self, data: bytes, side: int, where: str) -> list[Page]:
        """The pages of a PDF file.

        Args:
            data: the file.
            side: longer side of the images of its pages, in pixels; 0 = only the text is wanted.
            where: the file's path in the request, for the error.

        Raises:
            InvalidInput: it is encrypted, damaged, too large, or ended the process that read it.
            UnsupportedParameter: the libraries that read it are not installed.
            BackendError: the process cannot be started.
        """
        if any(find_spec(library) is None for library in _LIBRARIES):
            message = f"`{where}`: PDF files cannot be read here; they need pip install 'stoker[documents]'"
            raise UnsupportedParameter(message, parameter=where)
        key = (sha256(data).digest(), side)
        answer = self._known(key, where)
        if answer is None:
            with self._turns:
                answer = self._known(key, where) or self._read(key, data, where)
        return pages_decoder.decode(memoryview(answer)[1:])

    def _known(self, key: _Key, where: str) -> bytes | None:
        with self._lock:
            if key in self._refused:
                raise _refusal(self._refused[key], where)
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def _read(self, key: _Key, data: bytes, where: str) -> bytes:
        answer, reason = _run((*self._program, str(key[1])), data)
        with self._lock:
            if reason:
                self._refused[key] = reason
                if len(self._refused) > _MAX_REFUSED:
                    self._refused.popitem(last=False)
                raise _refusal(reason, where)
            self.num_read += 1
            self._kept[key] = answer
            while sum(map(len, self._kept.values())) > self._max_kept_bytes:
                self._kept.popitem(last=False)
        return answer


def _run(command: tuple[str, ...], data: bytes) -> tuple[bytes, str]:
    """The output of the process, or the reason why the file is refused."""
    try:
        with tempfile.TemporaryFile() as given:
            given.write(data)
            given.seek(0)
            process = subprocess.Popen(command, stdin=given, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError as error:
        raise BackendError(f"the program that reads documents cannot be started: {reason_of(error)}") from error
    watch = threading.Timer(_WAIT_S, process.kill)
    watch.daemon = True
    watch.start()
    try:
        with process:
            assert process.stdout is not None
            answer = process.stdout.read(_MAX_ANSWER_BYTES + 1)
            if len(answer) > _MAX_ANSWER_BYTES:
                process.kill()
    finally:
        watch.cancel()
    return _judged(answer, process.returncode)


def _judged(answer: bytes, code: int) -> tuple[bytes, str]:
    if code in (-signal.SIGKILL, -signal.SIGXCPU):
        return b"", "takes too long to read"
    if code != 0 or answer[:1] not in (DONE, REFUSED):
        return b"", "ends the process that reads it"
    return (answer, "") if answer[:1] == DONE else (b"", answer[1:].decode("utf-8", "replace"))


def _refusal(reason: str, where: str) -> InvalidInput:
    return InvalidInput(f"`{where}`: the PDF file {reason}", parameter=where)
