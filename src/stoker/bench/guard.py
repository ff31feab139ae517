"""Ends a server when its benchmark is killed: a killed process cannot end its children, which would run for ever."""

from __future__ import annotations

import subprocess

_PROGRAM = 'read -r line || kill -s KILL -- "-$1"'
"""Its stdin ends when we do."""


class Guard:
    """A process that kills all others of a group as soon as this one is gone, however it died.

    A shell, because it is there in a millisecond or two: another Python would take the processor from a server whose
    start is measured. That the kernel ends a child with its parent would have to be asked for by the child.

    Args:
        group: of processes; close this soon after they have ended, because their number is free then.

    Raises:
        OSError: there is no shell.
    """

    def __init__(self, group: int) -> None:
        command = ["/bin/sh", "-c", _PROGRAM, "sh", str(group)]
        # A session of its own: what ends us, such as a terminal that is closed, does not end it, too.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def close(self) -> None:
        """Lets the group live from now on."""
        self._process.kill()
        self._process.communicate()
