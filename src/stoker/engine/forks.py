"""In the process that forks engines out of itself: who was forked, and what the parent is told of it. See `template`.

```
parent ---- Fork, with a stdin and a pipe ----> this process ---- fork ----> engine: reads its `Launch` from that stdin
       <--- its pid, and a descriptor of it --- this process
pipe   <--- how it has ended ------------------ this process, which alone can wait for it
```
"""

from __future__ import annotations

import os
import signal
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress

from stoker.engine import garbage

REPLY = struct.Struct("=qq")
"""The number of a `Fork`, and the pid of who was forked; 0 = nobody."""
EXIT_CODE = struct.Struct("=q")
"""As `subprocess` has it: negative is the signal that killed it."""


class Forks:
    """Those that this process has forked and not yet waited for.

    Args:
        stdin: a local socket, to the parent.
    """

    def __init__(self, stdin: int) -> None:
        self._stdin = stdin
        self._forked: dict[int, tuple[int, int]] = {}
        """For each one's descriptor its pid, and the pipe by which its end is told."""

    @property
    def descriptors(self) -> list[int]:
        """Those that have ended can be read."""
        return list(self._forked)

    def fork(self, number: int, passed: Sequence[int]) -> bool:
        """Forks, and tells the parent whom.

        Args:
            number: of the order.
            passed: what is to be its stdin, and the pipe for its end; it is closed here.

        Returns:
            Whether this is the new process. That has no parts of ours: stdin is its own.
        """
        stdin, pipe = passed
        try:
            _check_single()
            garbage.share()
            pid = os.fork()
        except OSError:
            os.close(stdin)
            os.close(pipe)
            self._reply(number, 0)
            return False
        if pid == 0:
            self._begin(stdin, pipe)
            return True
        os.close(stdin)
        self._note(number, pid, pipe)
        return False

    def reap(self, descriptor: int) -> None:
        """Waits for one that has ended, and tells how."""
        pid, pipe = self._forked.pop(descriptor)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with suppress(OSError):  # nobody wants to know any more
            os.write(pipe, EXIT_CODE.pack(code))
        os.close(pipe)
        os.close(descriptor)

    def _begin(self, stdin: int, pipe: int) -> None:
        os.setsid()
        os.dup2(stdin, self._stdin)
        os.close(stdin)
        os.close(pipe)
        for descriptor, (_, other) in self._forked.items():
            os.close(descriptor)
            os.close(other)
        self._forked.clear()

    def _note(self, number: int, pid: int, pipe: int) -> None:
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(pipe)
            self._reply(number, 0)
            return
        self._forked[descriptor] = pid, pipe
        self._reply(number, pid, descriptor)

    def _reply(self, number: int, pid: int, *descriptors: int) -> None:
        parent = socket.socket(fileno=self._stdin)
        try:
            with suppress(OSError):  # it has gone: its end is read next
                socket.send_fds(parent, [REPLY.pack(number, pid)], descriptors)
        finally:
            parent.detach()


def _check_single() -> None:
    """A lock that another thread holds would be held for ever in the new process."""
    if len(os.listdir("/proc/self/task")) > 1:
        raise OSError("this process has several threads")
