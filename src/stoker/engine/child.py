"""The parent's handle on one engine process: starts it, stops it, and waits for its exit. It decides no restart."""

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
    """One engine process, with its channel; a restart creates another `Child`. Belongs to the running event loop.

    The child's output goes to the parent's stderr. Its stdin stays open: if the parent dies, in whatever way, the child
    reads the end of its stdin and exits.

    Args:
        process: a started process that waits for its `Launch`.
        channel: the connection to this process only.
        launch: the message that tells the process what to load.

    Raises:
        OSError: no thread can be started to wait for the process.
    """

    def __init__(self, process: spare.Process, channel: Channel, launch: Launch) -> None:
        loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[int] = loop.create_future()
        """The exit code of the process; if negative, the number of the signal that killed it."""
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
        """Sends `Shutdown`, after `grace_s` SIGTERM, after another `grace_s` SIGKILL. Frees everything, see `reap`."""
        with contextlib.suppress(StokerError):
            self.channel.send(Shutdown())
        if not await self._has_exited(grace_s):
            self._process.send_signal(signal.SIGTERM)
            if not await self._has_exited(grace_s):
                logger.warning("the engine process %d does not stop: killing it", self.pid)
        await self.reap()

    async def reap(self) -> None:
        """Kills the process if it still runs, waits a few seconds at most for its exit, and frees everything."""
        self._process.kill()  # has no effect on a process whose exit was already waited for
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
        """Waits for the exit on a thread of its own: the only way that works alike on every operating system."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # the process died before it read its `Launch`: its exit code tells why
            self._process.stdin.write(line)
        code = self._process.wait()
        with contextlib.suppress(RuntimeError):  # the event loop was closed meanwhile
            loop.call_soon_threadsafe(self._note_exit, code)

    def _note_exit(self, code: int) -> None:
        if not self.exited.done():
            self.exited.set_result(code)


def _end(process: spare.Process) -> None:
    """Kills a process that has no waiting thread yet, and blocks until it has exited."""
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
