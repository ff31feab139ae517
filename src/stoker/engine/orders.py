"""The child's stdin: what its parent orders, one JSON line each, and that the parent is gone, however it died."""

from __future__ import annotations

import os
import select
import socket
import stat
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import msgspec

from stoker.engine.forks import Forks
from stoker.engine.protocol import Expect, Fork, Launch

Prepare: TypeAlias = Callable[[str], None]
"""Told the path of a model that is probably loaded next. Must not fail, and keeps little if it is not."""

EXIT_ORPHANED = 4

_STDIN = 0
_MAX_READ = 65536
_PASSED_WITH_FORK = 2
_decoder: msgspec.json.Decoder[Expect | Fork | Launch] = msgspec.json.Decoder(Expect | Fork | Launch)


def await_launch(prepare: Prepare) -> Launch:
    """Waits for the orders, and prepares what is expected meanwhile. Exits if the parent is gone.

    Whoever is told to fork stays here for ever; those that it forks return one after the other, each with its own.
    """
    forks = Forks(_STDIN)
    orders = _Orders(forks)
    while (line := orders.next_line()) is not None:
        match _decoder.decode(line):
            case Launch() as launch:
                return launch
            case Expect(model_path):
                prepare(model_path)
            case Fork(number):
                if forks.fork(number, orders.take_passed()):
                    orders = _Orders(forks)
    sys.exit(EXIT_ORPHANED)


def exit_with_parent(launch: Launch) -> None:
    """Waits until the parent is gone, removes what it could not, and exits."""
    with suppress(OSError):
        while os.read(_STDIN, _MAX_READ):
            pass
    with suppress(OSError):  # a parent that was killed could not remove its sockets
        paths = [Path(e.removeprefix("ipc://")) for e in (launch.commands, launch.events) if e.startswith("ipc://")]
        for path in paths:
            path.unlink(missing_ok=True)
        for folder in {path.parent for path in paths}:
            folder.rmdir()
    os._exit(EXIT_ORPHANED)


class _Orders:
    """Lines from the descriptor, because a buffered reader cannot be left inside a daemon thread.

    Args:
        forks: whose ends are waited for meanwhile.
    """

    def __init__(self, forks: Forks) -> None:
        self._forks = forks
        self._lines: deque[bytes] = deque()
        self._rest = b""
        self._passed: deque[int] = deque()
        self._is_socket = stat.S_ISSOCK(os.fstat(_STDIN).st_mode)

    def next_line(self) -> bytes | None:
        """None = the parent is gone."""
        while not self._lines:
            self._await_input()
            part = self._read()
            if not part:
                return None
            *lines, self._rest = (self._rest + part).split(b"\n")
            self._lines.extend(lines)
        return self._lines.popleft()

    def take_passed(self) -> tuple[int, int]:
        """The descriptors that came with the last line; the caller's from now on."""
        return self._passed.popleft(), self._passed.popleft()

    def _await_input(self) -> None:
        while watched := self._forks.descriptors:
            poller = select.poll()
            for descriptor in (_STDIN, *watched):
                poller.register(descriptor, select.POLLIN)
            ready = {descriptor for descriptor, _ in poller.poll()}
            for descriptor in ready.intersection(watched):
                self._forks.reap(descriptor)
            if _STDIN in ready:
                return

    def _read(self) -> bytes:
        if not self._is_socket:
            return os.read(_STDIN, _MAX_READ)
        parent = socket.socket(fileno=_STDIN)
        try:
            part, passed, _, _ = socket.recv_fds(parent, _MAX_READ, _PASSED_WITH_FORK, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:  # it has gone without reading all
            return b""
        finally:
            parent.detach()
        self._passed.extend(passed)
        return part
