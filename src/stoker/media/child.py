"""Runs a child process that answers orders on pipes. It is started on demand, and a crash is reported to callers."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Generic, TypeVar

import msgspec

from stoker.errors import BackendError, ModelUnsupported, Timeout, reason_of
from stoker.media.frames import HEADER, Describe, Refused, framed

_START_S, _REPLY_S = 300.0, 600.0
_STOP_S = 2.0

ReplyT = TypeVar("ReplyT")


class ChildDied(Exception):
    """The child process ended before it replied to an order.

    Args:
        is_crash: the process ended by itself; False = its parent ended it, because of another order.
    """

    def __init__(self, *, is_crash: bool) -> None:
        super().__init__()
        self.is_crash = is_crash


class Child(Generic[ReplyT]):
    """A child process that loads one model and answers numbered orders, restarted after a crash.

    Not thread-safe: all calls come from one event loop. The owner calls `close`.

    Args:
        command: the program with its arguments.
        what: name of the model that the program loads, for errors.
        replies: decodes the program's replies.
        environment: environment variables in addition to those of this process.
        reply_s: timeout for the reply to an order, in seconds.
    """

    def __init__(
        self,
        command: Sequence[str],
        what: str,
        replies: msgspec.msgpack.Decoder[ReplyT],
        environment: Mapping[str, str],
        *,
        reply_s: float = _REPLY_S,
    ) -> None:
        self._command = command
        self._what = what
        self._replies = replies
        self._environment = environment
        self._reply_s = reply_s
        self._process: asyncio.subprocess.Process | None = None
        self._numbers = count(1)
        self._pending: dict[int, asyncio.Future[ReplyT]] = {}
        self._reading: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._described: ReplyT | None = None
        self.num_starts = 0

    @property
    def pid(self) -> int | None:
        """Id of the process; None = no process is running."""
        return None if self._process is None else self._process.pid

    @property
    def num_restarts(self) -> int:
        return max(0, self.num_starts - 1)

    async def start(self) -> ReplyT:
        """Starts the process if none is running, and returns the description of the model after it is loaded.

        Raises:
            ModelUnsupported: the model cannot be used.
            BackendError: the process cannot be started, or ends before it is ready.
        """
        async with self._starting:
            if self._process is None or self._described is None:
                self._described = await self._start()
            return self._described

    async def ask(self, order: msgspec.Struct) -> ReplyT:
        """The reply to an order. The process is started if none is running.

        Raises:
            ChildDied: the process ended before the reply.
            Timeout: the process took too long, and was killed.
            ModelUnsupported, BackendError: see `start`.
        """
        await self.start()
        return await self.send(order)

    async def send(self, order: msgspec.Struct) -> ReplyT:
        """The reply to an order. Raises `ChildDied` if no process is running. For other errors see `ask`."""
        return await self._send(order, self._reply_s)

    def tell(self, order: msgspec.Struct) -> None:
        """Sends a short order without waiting for its reply. Does nothing if no process is running."""
        if self._process is not None and self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write(framed(next(self._numbers), order))

    async def close(self) -> None:
        """Kills the process; pending orders fail with `ChildDied`. Calling it twice is allowed."""
        await self._close(is_crash=False)

    async def _start(self) -> ReplyT:
        await self._spawn()
        try:
            reply = await self._send(Describe(), _START_S)
        except ChildDied as error:
            raise BackendError(f"{self._what} ends the process that loads it") from error
        except Timeout as error:
            raise BackendError(f"{self._what} takes longer than {_START_S:g} s to load") from error
        if isinstance(reply, Refused):
            await self.close()
            raise ModelUnsupported(reply.message)
        return reply

    async def _spawn(self) -> None:
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

    async def _send(self, order: msgspec.Struct, wait_s: float) -> ReplyT:
        process = self._process
        if process is None or process.stdin is None:
            raise ChildDied(is_crash=False)
        number = next(self._numbers)
        future = self._pending[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(wait_s):
                if process.stdin.is_closing():  # uvloop would raise a RuntimeError
                    raise ConnectionResetError
                process.stdin.write(framed(number, order))
                await process.stdin.drain()
                return await future
        except (ConnectionError, TimeoutError) as error:
            is_slow = isinstance(error, TimeoutError)
            if process is self._process:
                await self._close(is_crash=not is_slow)
            if is_slow:
                raise Timeout(f"{self._what} takes longer than {wait_s:g} s for a file") from error
            raise ChildDied(is_crash=True) from error
        finally:
            self._pending.pop(number, None)

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
            self._end(is_crash=True)

    async def _close(self, *, is_crash: bool) -> None:
        process, reading = self._process, self._reading
        self._end(is_crash=is_crash)
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STOP_S):
                    await process.wait()
        if reading is not None:
            reading.cancel()
            await asyncio.wait([reading])

    def _end(self, *, is_crash: bool) -> None:
        """Marks the process as ended, and fails every order that waits for its reply."""
        self._process = self._reading = None
        for future in self._pending.values():
            if not future.done():
                future.set_exception(ChildDied(is_crash=is_crash))
