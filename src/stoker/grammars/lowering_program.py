"""The child process of `lowering`: reads orders from stdin and writes sources to stdout, as lines, until stdin ends."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import msgspec

from stoker.errors import GrammarTooComplex, StokerError
from stoker.grammars.lowering import MAX_S, Known, Made, Refused, Reply, Wanted
from stoker.grammars.sources import Order, Source, source_of
from stoker.grammars.vocabulary import cut

if sys.platform != "win32":
    import resource

_MEMORY_BYTES: Final = 2 << 30
"""Limit of the address space (RLIMIT_AS)."""
_NICE: Final = 5
"""Niceness of the process. With a higher one, or `sched_yield`, it would not run at all while all cores are busy."""
_TURN_S: Final = 0.0005
"""Wall time in seconds after which the process sleeps. The kernel's slice is 4 ms, nearly as long as a step."""
_REST_S: Final = 0.0002


class _Names:
    """Satisfies `Names` with the tokens that the parent sent first, and by asking the parent for others."""

    def __init__(self, known: Known) -> None:
        self._spellings = known.spellings
        self._ends = frozenset(known.ends)

    def one_token(self, text: str) -> int | None:
        _write(Wanted(text))
        return msgspec.json.decode(_read(), type=int | None)

    def pieces(self, marker: str) -> list[str | int]:
        return [piece for piece in cut(marker, self._spellings) if piece not in self._ends]


def main() -> None:
    """Answers orders until the parent exits or closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent handles it
    if sys.platform != "win32":
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(ValueError):  # the hard limit is lower
            resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
        os.nice(_NICE)
    orders = msgspec.json.Decoder(Order)
    with contextlib.suppress(EOFError, BrokenPipeError):
        names = _Names(msgspec.json.decode(_read(), type=Known))
        while True:
            line = _read()
            with _making_room():
                reply = _reply(orders.decode(line), names)
            _write(reply)


def _reply(order: Order, names: _Names) -> Reply:
    try:
        return Made(_source(order, names))
    except StokerError as error:
        return Refused(error.code, error.message, error.fields)


def _source(order: Order, names: _Names) -> Source:
    try:
        return source_of(order, names)
    except MemoryError:
        raise GrammarTooComplex("the grammar is too complex: preparing it takes too much memory") from None


@contextmanager
def _making_room() -> Generator[None]:
    """Yields the core every half millisecond, and sets a CPU timer that ends the process if its parent cannot."""
    if sys.platform == "win32":
        yield
        return
    signal.signal(signal.SIGALRM, lambda _signal, _frame: time.sleep(_REST_S))
    signal.setitimer(signal.ITIMER_REAL, _TURN_S, _TURN_S)
    signal.setitimer(signal.ITIMER_PROF, MAX_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)


def _read() -> bytes:
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    return line


def _write(reply: Reply) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(reply) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
