"""A spare engine process, started before its model is known, so that it imports its modules while its parent does.

```
main()    start ----> (spare) ----> take: it gets its `Launch`, as if it had been started now
                         |
                         +--------> discard: it was not needed, or something failed
```

The code that starts a spare must discard it in the end, unless it was taken. If this process dies meanwhile, the
spare reads the end of its stdin and exits. To start early, this module imports little more than the standard library.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from stoker.backends.cores import environment_of_sharers

Process: TypeAlias = subprocess.Popen[bytes]

ENGINE_COMMAND = (sys.executable, "-P", "-m", "stoker.assembly")
"""Command line of a child that can load every kind of model. With `-P`, it imports nothing from the working directory,
where a file such as `queue.py` could shadow a module.
"""
IS_SPARE = "STOKER_SPARE"
"""Environment variable that tells a child that it is a spare: it has time before its `Launch` comes."""

_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""Keeps numpy's OpenBLAS from starting a thread per core at import. No matrices are multiplied with it."""
_STDERR = 2
_REAP_S = 5.0


class _Spare:
    def __init__(self, command: Sequence[str]) -> None:
        self.command = tuple(command)
        self.environment = environment()
        """The environment that the process was started with."""
        self.process = spawn(command, {**self.environment, IS_SPARE: "1"})
        self.is_expecting = False


_spare: _Spare | None = None
"""The spare, of which there is at most one; it belongs to the main thread."""


def start(command: Sequence[str] = ENGINE_COMMAND) -> None:
    """Starts a spare, unless there is one. A failure is ignored: starting a child later reports the reason."""
    global _spare
    if _spare is not None:
        return
    try:
        _spare = _Spare(command)
    except OSError:
        return


def expect(model_path: str) -> None:
    """Tells the spare, if there is one, which model it will probably load, so that it can prepare. Only once."""
    if _spare is None or _spare.is_expecting:
        return
    _spare.is_expecting = True
    assert _spare.process.stdin is not None
    with contextlib.suppress(OSError):  # the spare has died: `take` will notice
        _spare.process.stdin.write(json.dumps({"type": "Expect", "model_path": model_path}).encode() + b"\n")


def take(command: Sequence[str]) -> tuple[Process, dict[str, str]]:
    """Returns a process that waits for its `Launch`: the spare, if it runs this command and is alive, else a new one.

    Returns:
        The process, which the caller owns, and the environment variables that have changed since it was started.

    Raises:
        OSError: the process cannot be started.
    """
    global _spare
    if _spare is None or _spare.command != tuple(command) or _spare.process.poll() is not None:
        return spawn(command, environment()), {}
    taken, _spare = _spare, None
    return taken.process, changed_since(taken.environment)


def discard() -> None:
    """Ends the spare, if there is one, and waits for it."""
    global _spare
    if _spare is None:
        return
    process, _spare = _spare.process, None
    end(process)


def end(process: Process) -> None:
    """Kills a process, waits for it, and closes its stdin."""
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_REAP_S)
    assert process.stdin is not None
    process.stdin.close()


def spawn(command: Sequence[str], environment: Mapping[str, str]) -> Process:
    """Starts a child whose standard output goes to this process's stderr.

    The child gets a session of its own, so that a Ctrl-C in the terminal reaches this process only.

    Raises:
        OSError: the child cannot be started.
    """
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=_STDERR, bufsize=0, start_new_session=True, env=environment
    )


def environment() -> dict[str, str]:
    """The environment for a process that is started now."""
    return {**_ONE_THREAD, **os.environ, **environment_of_sharers()}


def changed_since(before: Mapping[str, str]) -> dict[str, str]:
    """The variables of `environment` that are not as in `before`."""
    return {name: text for name, text in environment().items() if before.get(name) != text}
