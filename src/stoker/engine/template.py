"""A process that forks engines: all that they have imported, and the tokenizer of their model, lies in memory once.

It is a spare that is never launched. What happens in it is in `forks`. It is ours, as are those that it forks: they
live as long as we do, not as long as it does. Where nothing can be forked, engines are started as everywhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from typing import IO, Protocol

import msgspec

from stoker.engine import spare
from stoker.engine.forks import EXIT_CODE, REPLY
from stoker.engine.protocol import Fork

logger = logging.getLogger(__name__)

EXIT_UNTOLD = 255
"""Of an engine whose template was gone: nobody could hear how it ended."""

_CAN_FORK = sys.platform == "linux" and hasattr(os, "pidfd_open")
"""Elsewhere system libraries may have threads of their own in every process."""
_PIDFD = getattr(os, "P_PIDFD", 3)
"""A Python that was built with an older C library has no name for it."""
_FORK_S = 60.0
"""Includes all that the template prepares before the first one."""


class ChildProcess(Protocol):
    """What there is to do with an engine's process, whoever started it."""

    @property
    def pid(self) -> int: ...
    @property
    def stdin(self) -> IO[bytes] | None:
        """Takes its orders; when it is closed, the process exits."""
        ...

    def send_signal(self, sig: int) -> None:
        """Does nothing to a process that was waited for."""
        ...

    def kill(self) -> None: ...
    def wait(self) -> int:
        """Its exit code; negative: the signal that killed it."""
        ...


class ForkedProcess:
    """An engine that a template has forked. Satisfies `ChildProcess`; call `wait` once, on any thread.

    Args:
        pid: as the system calls it.
        descriptor: of the process, which is not its number that might be another's by now; it is closed here.
        stdin: see `ChildProcess`.
        pipe: on which the template tells how it ended; it is closed here.
    """

    def __init__(self, pid: int, descriptor: int, stdin: IO[bytes], pipe: int) -> None:
        self.pid = pid
        self.stdin: IO[bytes] | None = stdin
        self._descriptor = descriptor
        self._pipe = pipe
        self._has_ended = False
        self._guard = threading.Lock()
        """Over the descriptor, and whether it still is one."""

    def send_signal(self, sig: int) -> None:
        """See `ChildProcess`."""
        with self._guard, contextlib.suppress(ProcessLookupError):
            if not self._has_ended:
                signal.pidfd_send_signal(self._descriptor, sig)

    def kill(self) -> None:
        """See `ChildProcess`."""
        self.send_signal(signal.SIGKILL)

    def wait(self) -> int:
        """See `ChildProcess`; `EXIT_UNTOLD` if its template has died before it."""
        told = os.read(self._pipe, EXIT_CODE.size)
        code = EXIT_CODE.unpack(told)[0] if told else self._inherited()
        with self._guard:
            self._has_ended = True
            os.close(self._descriptor)
        os.close(self._pipe)
        return code

    def _inherited(self) -> int:
        """The template is gone, so another process waits for this one: the first of the system, which may be us."""
        poller = select.poll()
        poller.register(self._descriptor, select.POLLIN)
        poller.poll()
        try:
            found = os.waitid(_PIDFD, self._descriptor, os.WEXITED)
        except ChildProcessError:
            return EXIT_UNTOLD
        assert found is not None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


class Template:
    """Forks engines of one model. Belongs to one event loop. Nothing is started before the first is asked for.

    Args:
        model_path: what they will load; empty = it is not known what to prepare.
        command: starts a child that runs `serve_engine`.
    """

    def __init__(self, model_path: str, command: Sequence[str] = spare.ENGINE_COMMAND) -> None:
        self._model_path = model_path
        self._command = command
        self._process: spare.Process | None = None
        self._control: socket.socket | None = None
        self._environment: dict[str, str] = {}
        self._changed: dict[str, str] = {}
        """What it should have been given, and what of that it was not."""
        self._turn = asyncio.Lock()
        self._number = 0
        """Of the last order."""
        self._has_forked = False
        """The present process has."""
        self._is_useless = not _CAN_FORK

    @property
    def pid(self) -> int | None:
        """The process id of the template, if there is one now."""
        return None if self._process is None else self._process.pid

    async def fork(self) -> tuple[ChildProcess, dict[str, str]]:
        """A process that waits for its `Launch`, see `spare.take`: a fork if that is possible.

        Raises:
            OSError: none can be started.
        """
        async with self._turn:
            while not self._is_useless:
                try:
                    async with asyncio.timeout(_FORK_S):
                        forked = await self._fork()
                    return forked, {**self._changed, **spare.changed_since(self._environment)}
                except OSError as error:  # a timeout is one, too
                    self._is_useless = not self._has_forked
                    then = "engines are started instead" if self._is_useless else "starting another"
                    logger.warning("the process that forks engines %s: %s", _fault(error), then)
                    if (process := self._leave()) is not None:
                        await asyncio.to_thread(spare.end, process)
        return spare.take(self._command)

    def close(self) -> None:
        """Ends the template, not what it has forked, and waits for it. Calling it twice is allowed."""
        if (process := self._leave()) is not None:
            spare.end(process)

    def _leave(self) -> spare.Process | None:
        """Has no template any more; returns what is to be ended."""
        if self._control is not None:
            self._control.close()
            self._control = None
        process, self._process = self._process, None
        self._has_forked = False
        return process

    async def _fork(self) -> ForkedProcess:
        control = self._control or self._start()
        with contextlib.ExitStack() as undo:  # a process whose stdin is closed ends
            stdin, pipe = self._order(control, undo)
            pid, descriptor = await self._reply(control)
            undo.pop_all()
        self._has_forked = True
        return ForkedProcess(pid, descriptor, stdin, pipe)

    def _order(self, control: socket.socket, undo: contextlib.ExitStack) -> tuple[IO[bytes], int]:
        """Orders one more process: its stdin, and the pipe on which its end is told."""
        ours, theirs = socket.socketpair()
        with theirs:
            stdin = undo.enter_context(_file_of(ours))
            pipe, end = os.pipe()
            undo.callback(os.close, pipe)
            self._number += 1
            try:
                order = msgspec.json.encode(Fork(self._number)) + b"\n"
                socket.send_fds(control, [order], [theirs.fileno(), end])
            finally:
                os.close(end)
        return stdin, pipe

    def _start(self) -> socket.socket:
        spare.start(self._command)
        if self._model_path:
            spare.expect(self._model_path)
        self._process, self._changed = spare.take(self._command)
        self._environment = spare.environment()
        assert self._process.stdin is not None
        self._control = socket.socket(fileno=os.dup(self._process.stdin.fileno()))
        self._control.setblocking(False)
        return self._control

    async def _reply(self, control: socket.socket) -> tuple[int, int]:
        """Pid and descriptor of the process that the last order made."""
        while True:
            await _readable(control)
            reply, descriptors, _, _ = socket.recv_fds(control, REPLY.size, 1, socket.MSG_CMSG_CLOEXEC)
            if not reply:
                raise ConnectionResetError
            number, pid = REPLY.unpack(reply)
            if number == self._number and descriptors:
                return pid, descriptors[0]
            for descriptor in descriptors:  # of one that was given up
                os.close(descriptor)
            if number == self._number:
                raise OSError("cannot do so here")


def _file_of(end: socket.socket) -> IO[bytes]:
    return open(end.detach(), "wb", buffering=0)


def _fault(error: OSError) -> str:
    return "has died" if isinstance(error, ConnectionError) else str(error) or "does not answer"


async def _readable(control: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    found: asyncio.Future[None] = loop.create_future()

    def note() -> None:
        if not found.done():
            found.set_result(None)

    loop.add_reader(control, note)
    try:
        await found
    finally:
        loop.remove_reader(control)
