"""Entry point of the `stoker` command: starts an engine process early if one is needed, and ends with an exit code.

The engine process imports its modules while this process imports its own. Hence this module imports next to nothing
at its top. The commands themselves are in modules of their own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO, cast

from stoker.lazy import lazy_module

if TYPE_CHECKING:
    from stoker.cli import outcome, report
    from stoker.engine import garbage, spare
else:
    garbage = lazy_module("stoker.engine.garbage")
    outcome = lazy_module("stoker.cli.outcome")
    report = lazy_module("stoker.cli.report")
    spare = lazy_module("stoker.engine.spare")

_STDERR = 2
_EXTERNAL = ("llama-server", "vllm")
_NO_ENGINE = frozenset(("-h", "--help", *_EXTERNAL, *(f"--runtime={name}" for name in _EXTERNAL)))
"""If one of these is among its arguments, `stoker serve` only prints help, or llama-server or vLLM computes."""


def main() -> None:
    """Runs the command line and exits with a documented code."""
    try:
        open_standard_files()
        sys.stderr = cast(TextIO, Stderr(cast("TextIO | None", sys.stderr)))
        if will_need_engine(sys.argv[1:]):
            _run_beside_engine()
        else:
            outcome.run()
    except KeyboardInterrupt:
        raise SystemExit(report.INTERRUPTED) from None


def will_need_engine(arguments: Sequence[str]) -> bool:
    """Whether an engine process will be needed, judged before settings are read: by arguments and `STOKER_RUNTIME`."""
    if arguments[:1] != ["serve"] or os.environ.get("STOKER_RUNTIME") in _EXTERNAL:
        return False
    return len(arguments) > 1 and _NO_ENGINE.isdisjoint(arguments)


def open_standard_files() -> None:
    """Opens the null device in place of stdin, stdout and stderr, if the parent process has closed them.

    Otherwise the next opened files get the descriptors 0 to 2. What libraries or an engine print then goes into a
    client's connection, or into the memory through which engines share the cores.
    """
    with suppress(OSError):
        while (opened := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
            os.set_inheritable(opened, True)
        os.close(opened)


class Stderr:
    """A stderr whose writes never fail: messages to a closed, full or unread stderr are dropped.

    A server or an answer must not end because the reader of its messages is gone, as in `stoker serve 2>&1 | head -1`.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  (as long as the process)

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
            self.flush()
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            # Python flushes buffered text again at its exit, and a failure there would change the exit code.
            with suppress(OSError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self._stream.fileno())
                os.close(nowhere)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def _run_beside_engine() -> None:
    spare.start()
    garbage.look_rarely()
    try:
        outcome.run()
    finally:
        spare.discard()
        garbage.look_as_usual()
