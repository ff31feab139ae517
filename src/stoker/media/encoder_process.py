"""The process that makes rows of images and recordings, seen from its parent. It is started when it is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from stoker.errors import BackendError, InvalidInput, ModelUnsupported
from stoker.media.child import Child, ChildDied
from stoker.media.encoding import Describe, Described, Order, Refused, Reply, reply_decoder

_START_S, _REPLY_S = 120.0, 600.0
_QUIET = {"GGML_NO_BACKTRACE": "1"}
"""Keeps ggml from running a debugger that prints every frame before the process ends."""

ReplyT = TypeVar("ReplyT", bound=Reply)
EncoderDied = ChildDied


class NeedsPixels(Exception):
    """The process has lost the pixels that were left out."""


class EncoderProcess:
    """Belongs to one event loop.

    Args:
        command: the program with its arguments.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._child = Child(command, reply_decoder, _QUIET)
        self._starting = asyncio.Lock()
        self.described: Described | None = None
        """The facts about the projector, once they are known."""

    @property
    def pid(self) -> int | None:
        """None: no process runs."""
        return self._child.pid

    @property
    def num_starts(self) -> int:
        """How often a process was started."""
        return self._child.num_starts

    async def start(self) -> Described:
        """Starts the process, if none runs, and waits until it is ready.

        Raises:
            ModelUnsupported: the projector cannot be used.
            BackendError: the process cannot be started, or ends before it is ready.
        """
        async with self._starting:
            if self._child.pid is None or self.described is None:
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
        reply = await self._child.send(order, _REPLY_S)
        if isinstance(reply, Refused):
            if reply.needs_pixels:
                raise NeedsPixels
            raise InvalidInput(f"a file is refused: {reply.message}", parameter="messages")
        assert isinstance(reply, kind), "every order has one kind of reply"
        return reply

    async def close(self) -> None:
        """Ends the process. The next order starts it again. Calling it twice is allowed."""
        await self._child.close()

    async def _start(self) -> Described:
        await self._child.spawn()
        try:
            reply = await self._child.send(Describe(), _START_S)
        except ChildDied as error:
            raise BackendError("the projector ends the process that loads it, or takes too long") from error
        if isinstance(reply, Refused):
            await self._child.close()
            raise ModelUnsupported(reply.message)
        assert isinstance(reply, Described)
        return reply
