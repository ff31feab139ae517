"""The command line, from the start of the process to its exit code: what is begun early, and what becomes of an error.

An engine that will surely be needed is started first of all, and imports while this process does. Hence next to nothing
is imported here on top.
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
"""With one of these among its arguments, `serve` starts no engine of ours."""


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
    """Whether an engine's process will be asked for, as far as that can be told before settings are read."""
    if arguments[:1] != ["serve"] or os.environ.get("STOKER_RUNTIME") in _EXTERNAL:
        return False
    return len(arguments) > 1 and _NO_ENGINE.isdisjoint(arguments)


def open_standard_files() -> None:
    """Who starts a service may have closed stdin, stdout and stderr.

    Then the next files would get their numbers: what libraries or an engine print would go into a client's connection,
    or into the memory by which engines share the cores.
    """
    with suppress(OSError):
        while (opened := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
            os.set_inheritable(opened, True)
        os.close(opened)


class Stderr:
    """A stderr whose writes never fail: messages to a closed, full or unread stderr are dropped.

    An answer or a server does not end because of who read its messages, as in `stoker serve 2>&1 | head -1`.
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
            # What waits in the stream would be tried again at the end of the process, and change its exit code.
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
