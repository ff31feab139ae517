"""The command line, from the start of the process to its exit code: what is begun early, and what becomes of an error.

An engine that will surely be needed is started first of all, and imports while this process does. Hence next to nothing
is imported here on top.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from stoker.engine import garbage, spare

_STDERR = 2
_NO_ENGINE = frozenset(("--help", "llama-server", "--runtime=llama-server"))
"""With one of these among its arguments, `serve` starts no engine of ours."""


def main() -> None:
    """Runs the command line and exits with a documented code."""
    open_standard_files()
    if not will_need_engine(sys.argv[1:]):
        _run()
        return
    spare.start()
    garbage.look_rarely()
    try:
        _run()
    finally:
        spare.discard()
        garbage.look_as_usual()


def will_need_engine(arguments: Sequence[str]) -> bool:
    """Whether an engine's process will be asked for, as far as that can be told before settings are read."""
    if arguments[:1] != ["serve"] or os.environ.get("STOKER_RUNTIME") == "llama-server":
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


def _run() -> None:
    from stoker.errors import StokerError

    try:
        from stoker.cli.commands import command_line

        command_line(sys.argv[1:])()
    except StokerError as error:
        from stoker.cli.report import exit_code, say_error

        say_error(error)
        raise SystemExit(exit_code(error)) from None
    except KeyboardInterrupt:
        from stoker.cli.report import INTERRUPTED

        raise SystemExit(INTERRUPTED) from None
