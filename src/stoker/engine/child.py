"""The parent's handle on one child process: started, heard, stopped, and always waited for. It decides no restart."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import threading
from collections.abc import Sequence

import msgspec
import zmq.asyncio

from stoker.engine import spare
from stoker.engine.channel import Channel
from stoker.engine.config import EngineConfig
from stoker.engine.protocol import Launch, Shutdown
from stoker.errors import StokerError

logger = logging.getLogger(__name__)

_REAP_S = 5.0


class Child:
    """One incarnation of an engine process, with its channel. Belongs to the running event loop.

    Its output goes to our stderr. Its stdin stays open: when we die, however we die, it reads the end of it and exits.

    Args:
        process: waits for its orders.
        channel: the connection to this process alone.
        launch: what the process is told to load.

    Raises:
        OSError: no thread can be started to wait for the process.
    """

    def __init__(self, process: spare.Process, channel: Channel, launch: Launch) -> None:
        loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[int] = loop.create_future()
        """The exit code; negative: the signal that killed it."""
        self.channel = channel
        self._process = process
        line = msgspec.json.encode(launch) + b"\n"
        self._waiter = threading.Thread(target=self._wait, args=(loop, line), name="stoker-child-wait", daemon=True)
        try:
            self._waiter.start()
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, str(error)) from error

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        config: EngineConfig,
        context: zmq.asyncio.Context,
        heartbeat_every_s: float,
    ) -> Child:
        """Starts the process.

        Raises:
            OSError: the process cannot be started.
        """
        with contextlib.ExitStack() as undo:
            channel = Channel(context)
            undo.callback(channel.close)
            process, environment = spare.take(command)
            undo.callback(_end, process)
            launch = Launch(config, channel.commands, channel.events, heartbeat_every_s, environment)
            child = cls(process, channel, launch)
            undo.pop_all()
        return child

    @property
    def pid(self) -> int:
        return self._process.pid

    async def stop(self, grace_s: float) -> None:
        """Asks, insists, kills: at most `2 * grace_s` and a moment. Afterwards the process is gone and waited for."""
        with contextlib.suppress(StokerError):
            self.channel.send(Shutdown())
        if not await self._has_exited(grace_s):
            self._process.send_signal(signal.SIGTERM)
            if not await self._has_exited(grace_s):
                logger.warning("the engine process %d does not stop: killing it", self.pid)
        await self.reap()

    async def reap(self) -> None:
        """Kills what is left of the process, waits for it, and frees everything."""
        self._process.kill()  # does nothing to a process that was waited for
        if await self._has_exited(_REAP_S):
            self._waiter.join(_REAP_S)
        else:
            logger.error("the engine process %d cannot be killed", self.pid)
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self.channel.close()

    async def _has_exited(self, wait_s: float) -> bool:
        await asyncio.wait([self.exited], timeout=wait_s)
        return self.exited.done()

    def _wait(self, loop: asyncio.AbstractEventLoop, line: bytes) -> None:
        """On a thread of its own: the only way to wait for a process that is the same everywhere."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it died before it read its orders: the exit code tells
            self._process.stdin.write(line)
        code = self._process.wait()
        with contextlib.suppress(RuntimeError):  # the loop was closed under us
            loop.call_soon_threadsafe(self._note_exit, code)

    def _note_exit(self, code: int) -> None:
        if not self.exited.done():
            self.exited.set_result(code)


def _end(process: spare.Process) -> None:
    """Waits in place for one that was just started, and killed: there is no thread for it."""
    process.kill()
    process.wait()
    assert process.stdin is not None
    process.stdin.close()


def describe_exit(code: int) -> str:
    """An exit code in words.

    >>> describe_exit(-9)
    'was killed by SIGKILL'
    >>> describe_exit(3)
    'exited with code 3'
    """
    if code >= 0:
        return f"exited with code {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"
