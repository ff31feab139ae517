"""Reads untrusted PDF files, each in a separate process, and caches the pages for later requests."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import threading
from hashlib import sha256
from importlib.util import find_spec

from stoker.errors import BackendError, InvalidInput, Timeout, UnsupportedParameter, reason_of
from stoker.media.confined import FileRefused
from stoker.media.pages import MAX_PICTURE_BYTES, MAX_TEXT, Page, pages_decoder
from stoker.media.verdicts import Verdicts

_PROGRAM = (sys.executable, "-I", "-m", "stoker.media.decode_program")
_MAX_ANSWER_BYTES = MAX_PICTURE_BYTES + 8 * MAX_TEXT
_MAX_KEPT_BYTES = 64 << 20
_AT_A_TIME = 2
_WAIT_S = 60.0
_LIBRARIES = ("pypdf", "pypdfium2", "PIL")


class DocumentReader:
    """Reads PDF files, at most two at a time; reading one takes at most about a minute. Safe to use from any thread.

    Args:
        program: the command that reads one file.
        max_kept_bytes: maximum size of cached pages; the least recently used ones are evicted first.
    """

    def __init__(self, program: tuple[str, ...] = _PROGRAM, *, max_kept_bytes: int = _MAX_KEPT_BYTES) -> None:
        self._program = program
        self._verdicts = Verdicts[tuple[bytes, int]](max_kept_bytes)
        """Pages and refusals by the digest of a file, and the size of the images of its pages."""
        self._turns = threading.BoundedSemaphore(_AT_A_TIME)

    @property
    def num_read(self) -> int:
        return self._verdicts.num_decoded

    def pages(self, data: bytes, side: int, where: str) -> list[Page]:
        """The pages of a PDF file.

        Args:
            data: the file.
            side: longer side of the images of its pages, in pixels; 0 = only the text is wanted.
            where: the file's path in the request, for the error.

        Raises:
            InvalidInput: the file is encrypted, damaged, too large, or crashed the process that read it.
            UnsupportedParameter: the libraries that read PDF files are not installed.
            BackendError: the process cannot be started, or was killed from outside.
            Timeout: the file was not read within 60 s.
        """
        if any(find_spec(library) is None for library in _LIBRARIES):
            message = f"`{where}`: PDF files cannot be read here; they need pip install 'stoker[documents]'"
            raise UnsupportedParameter(message, parameter=where)
        key = (sha256(data).digest(), side)
        try:
            answer = self._verdicts.known(key)
            if answer is None:
                with self._turns:
                    answer = self._verdicts.known(key) or self._verdicts.take(key, *self._run(data, side))
        except FileRefused as error:
            raise InvalidInput(f"`{where}`: the PDF file {error}", parameter=where) from error
        return pages_decoder.decode(answer)

    def _run(self, data: bytes, side: int) -> tuple[bytes, int]:
        """Runs the process that reads one file; returns its output and its exit code."""
        command = (*self._program, "pages", str(side))
        try:
            with tempfile.TemporaryFile() as given:
                given.write(data)
                given.seek(0)
                process = subprocess.Popen(command, stdin=given, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        except OSError as error:
            raise BackendError(f"the program that reads documents cannot be started: {reason_of(error)}") from error
        is_late = threading.Event()

        def end() -> None:
            is_late.set()
            process.kill()

        watch = threading.Timer(_WAIT_S, end)
        watch.daemon = True
        watch.start()
        try:
            with process:
                assert process.stdout is not None
                answer = process.stdout.read(_MAX_ANSWER_BYTES + 1)
                if len(answer) > _MAX_ANSWER_BYTES:
                    process.send_signal(signal.SIGABRT)
        finally:
            watch.cancel()
        if is_late.is_set():
            raise Timeout(f"a PDF file could not be read within {_WAIT_S:g} s: this machine is busy")
        return answer, process.returncode
