"""Translates constraints (`sources`) in a separate process, so that engine threads do not wait for the GIL meanwhile.

Each message is a line of JSON. The process is started on first use, and restarted after it was ended. If no process can
be started, the work is done in this process.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from threading import Lock, Timer
from typing import Final, TypeAlias

import msgspec

from stoker.errors import FieldValue, GrammarTooComplex, InvalidInput, error_from_code
from stoker.grammars.sources import Order, Source, source_of
from stoker.grammars.vocabulary import Vocabulary

_PROGRAM: Final = (sys.executable, "-P", "-m", "stoker.grammars.lowering_program")
MAX_S: Final = 10.0
"""Maximum time for one constraint, in seconds; after that, the process is killed."""


class Known(msgspec.Struct, frozen=True):
    """The first message to the process: special tokens by their spelling, and end-of-generation tokens."""

    spellings: dict[str, int]
    ends: list[int]


class Wanted(msgspec.Struct, frozen=True, tag=True):
    """The process asks which token a text is. The answer is a line with the token's id, or null."""

    text: str


class Refused(msgspec.Struct, frozen=True, tag=True):
    """Reply: the constraint caused an error of its request."""

    code: str
    message: str
    fields: dict[str, FieldValue]


class Made(msgspec.Struct, frozen=True, tag=True):
    """Reply: the translated constraint."""

    source: Source


Reply: TypeAlias = Wanted | Refused | Made
_replies: msgspec.json.Decoder[Reply] = msgspec.json.Decoder(Reply)


class Lowering:
    """The child process that translates constraints. Used by the compiling thread; any thread may call `close`.

    Args:
        vocabulary: the model's vocabulary.
        program: the command that starts the process.
        max_s: timeout for one constraint, in seconds.
    """

    def __init__(self, vocabulary: Vocabulary, program: tuple[str, ...] = _PROGRAM, max_s: float = MAX_S) -> None:
        self._vocabulary = vocabulary
        self._program = program
        self._max_s = max_s
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        """Id of the process; None = no process is running."""
        process = self._process
        return None if process is None else process.pid

    def start(self) -> None:
        """Starts the process if none is running. It is ready in about 0.1 s; orders may be sent before that."""
        with self._lock:
            if self._is_closed or (self._process is not None and self._process.poll() is None):
                return
            if self._process is not None:
                _close_pipes(self._process)
            pipe = subprocess.PIPE
            with contextlib.suppress(OSError):
                self._process = subprocess.Popen(self._program, stdin=pipe, stdout=pipe)
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._send(self._process, Known(self._vocabulary.spellings, sorted(self._vocabulary.eog_token_ids)))

    def source(self, order: Order) -> Source:
        """See `source_of`. A constraint that takes too long or crashes the process raises `GrammarTooComplex`."""
        until_s = time.monotonic() + self._max_s
        for _ in range(2):  # a retry, since the system may have killed the process before this order
            self.start()
            process = self._process
            if self._is_closed:
                raise InvalidInput("the model is being closed")
            if process is None:
                return source_of(order, self._vocabulary)
            timer = Timer(max(0.0, until_s - time.monotonic()), process.kill)
            timer.start()
            try:
                self._send(process, order)
                return self._answer(process)
            except (OSError, EOFError):
                self._end(process)
            finally:
                timer.cancel()
        raise GrammarTooComplex("the grammar is too complex: preparing it takes too much time or memory")

    def close(self) -> None:
        """Ends the process. Calling it twice is allowed."""
        with self._lock:
            self._is_closed = True
            process = self._process
        if process is not None:
            self._end(process)

    def _answer(self, process: subprocess.Popen[bytes]) -> Source:
        assert process.stdout is not None
        while True:
            line = process.stdout.readline()
            if not line.endswith(b"\n"):
                raise EOFError
            match _replies.decode(line):
                case Wanted(text):
                    self._send(process, self._vocabulary.one_token(text))
                case Refused(code, message, fields):
                    raise error_from_code(code, message, fields)
                case Made(source):
                    return source

    def _send(self, process: subprocess.Popen[bytes], message: Known | Order | int | None) -> None:
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(message) + b"\n")
        process.stdin.flush()

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()
        _close_pipes(process)
        with self._lock:
            if self._process is process:
                self._process = None


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with contextlib.suppress(OSError):
            pipe.close()
