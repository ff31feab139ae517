"""The process that makes rows of images and recordings, seen from its parent. It is started when it is needed."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from itertools import count
from typing import TypeVar

from stoker.errors import BackendError, InvalidInput, ModelUnsupported
from stoker.media.encoding import HEADER, Describe, Described, Order, Refused, Reply, framed, reply_decoder

_START_S, _REPLY_S, _STOP_S = 120.0, 600.0, 2.0
_QUIET = {"GGML_NO_BACKTRACE": "1"}
"""Keeps ggml from running a debugger that prints every frame before the process ends."""

ReplyT = TypeVar("ReplyT", bound=Reply)


class EncoderDied(Exception):
    """The process ended before it had replied."""


class NeedsPixels(Exception):
    """The process has lost the pixels that were left out."""


class EncoderProcess:
    """Belongs to one event loop.

    Args:
        command: the program with its arguments.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()
        self._numbers = count(1)
        self._pending: dict[int, asyncio.Future[Reply]] = {}
        self._reading: asyncio.Task[None] | None = None
        self.described: Described | None = None
        """The facts about the projector, once they are known."""
        self.num_starts = 0

    @property
    def pid(self) -> int | None:
        """None: no process runs."""
        return None if self._process is None else self._process.pid

    async def start(self) -> Described:
        """Starts the process, if none runs, and waits until it is ready.

        Raises:
            ModelUnsupported: the projector cannot be used.
            BackendError: the process cannot be started, or ends before it is ready.
        """
        async with self._starting:
            if self._process is None or self.described is None:
                self.described = await self._start()
            return self.described

    async def ask(self, order: Order, kind: type[ReplyT]) -> ReplyT:
        """The reply to an order.

        Raises:
            EncoderDied: the process ended meanwhile, or took too long.
            NeedsPixels: the process no longer has the pixels that the order left out.
            StokerError: it refuses the order, or cannot be started.
        """
        await self.start()
        reply = await self._send(order, _REPLY_S)
        if isinstance(reply, Refused):
            if reply.needs_pixels:
                raise NeedsPixels
            raise InvalidInput(f"a file is refused: {reply.message}", parameter="messages")
        assert isinstance(reply, kind), "every order has one kind of reply"
        return reply

    async def close(self) -> None:
        """Ends the process. The next order starts it again. Calling it twice is allowed."""
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

    async def _start(self) -> Described:
        await self.close()
        pipe = asyncio.subprocess.PIPE
        environment = {**os.environ, **_QUIET}
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL, env=environment
            )
        except OSError as error:
            raise BackendError(f"the process for images and audio cannot be started: {error}") from error
        self.num_starts += 1
        self._reading = asyncio.create_task(self._read(self._process), name="stoker-encoder-replies")
        try:
            reply = await self._send(Describe(), _START_S)
        except EncoderDied as error:
            raise BackendError("the projector ends the process that loads it, or takes too long") from error
        if isinstance(reply, Refused):
            await self.close()
            raise ModelUnsupported(reply.message)
        assert isinstance(reply, Described)
        return reply

    async def _send(self, order: Order, wait_s: float) -> Reply:
        process = self._process
        if process is None or process.stdin is None:
            raise EncoderDied
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
            raise EncoderDied from error
        finally:
            self._pending.pop(number, None)

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                size, number = HEADER.unpack(await process.stdout.readexactly(HEADER.size))
                reply = reply_decoder.decode(await process.stdout.readexactly(size))
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
                future.set_exception(EncoderDied())
