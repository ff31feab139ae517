"""A process that answers orders on pipes, seen from its parent: frames of numbered messages, and what ends with it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Generic, TypeVar

import msgspec

from stoker.errors import BackendError, reason_of

HEADER = struct.Struct("<II")
"""Header of a frame: its length in bytes, and the number of the order, which the reply repeats."""
_STOP_S = 2.0

ReplyT = TypeVar("ReplyT")


class ChildDied(Exception):
    """The process ended before it had replied."""


class Child(Generic[ReplyT]):
    """Belongs to one event loop.

    Args:
        command: the program with its arguments.
        replies: reads what it replies.
        environment: variables that it is given besides those of this process.
    """

    def __init__(
        self, command: Sequence[str], replies: msgspec.msgpack.Decoder[ReplyT], environment: Mapping[str, str]
    ) -> None:
        self._command = command
        self._replies = replies
        self._environment = environment
        self._process: asyncio.subprocess.Process | None = None
        self._numbers = count(1)
        self._pending: dict[int, asyncio.Future[ReplyT]] = {}
        self._reading: asyncio.Task[None] | None = None
        self.num_starts = 0

    @property
    def pid(self) -> int | None:
        """None: no process runs."""
        return None if self._process is None else self._process.pid

    async def spawn(self) -> None:
        """Starts a process; one that runs already is ended.

        Raises:
            BackendError: it cannot be started.
        """
        await self.close()
        pipe = asyncio.subprocess.PIPE
        environment = {**os.environ, **self._environment}
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL, env=environment
            )
        except OSError as error:
            raise BackendError(f"{self._command[0]} cannot be started: {reason_of(error)}") from error
        self.num_starts += 1
        self._reading = asyncio.create_task(self._read(self._process), name="stoker-child-replies")

    async def send(self, order: msgspec.Struct, wait_s: float) -> ReplyT:
        """The reply to an order.

        Raises:
            ChildDied: the process ended meanwhile, or took too long and was ended.
        """
        process = self._process
        if process is None or process.stdin is None:
            raise ChildDied
        number = next(self._numbers)
        future = self._pending[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(wait_s):
                process.stdin.write(framed(number, order))
                await process.stdin.drain()
                return await future
        except (ConnectionError, TimeoutError) as error:
            if process is self._process:
                await self.close()
            raise ChildDied from error
        finally:
            self._pending.pop(number, None)

    def tell(self, order: msgspec.Struct) -> None:
        """Sends a short order without waiting for its reply. Without a process, nothing happens."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(framed(next(self._numbers), order))

    async def close(self) -> None:
        """Ends the process. Calling it twice is allowed."""
        process, reading = self._process, self._reading
        self._end()
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STOP_S):
                    await process.wait()
        if reading is not None:
            reading.cancel()
            await asyncio.wait([reading])

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                size, number = HEADER.unpack(await process.stdout.readexactly(HEADER.size))
                reply = self._replies.decode(await process.stdout.readexactly(size))
                future = self._pending.get(number)
                if future is not None and not future.done():
                    future.set_result(reply)
        await process.wait()
        if process is self._process:
            self._end()

    def _end(self) -> None:
        """Fails every order that waits for a reply of the process that ended."""
        self._process = self._reading = None
        for future in self._pending.values():
            if not future.done():
                future.set_exception(ChildDied())


def framed(number: int, message: msgspec.Struct) -> bytes:
    """A message as it stands on a pipe."""
    data = msgspec.msgpack.encode(message)
    return HEADER.pack(len(data), number) + data
