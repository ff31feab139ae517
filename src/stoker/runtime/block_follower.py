"""Asks an engine repeatedly which blocks of KV it holds, and tells its listeners. It keeps no request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeAlias

from stoker.engine.question_messages import BlocksHeld, LookAtBlocks
from stoker.errors import StokerError, UnsupportedParameter
from stoker.runtime.base import Runtime
from stoker.runtime.cached_prefixes import HeldBlocks

logger = logging.getLogger(__name__)

LOOK_S = 0.25
"""Time between two questions to an engine."""

OnBlocks: TypeAlias = Callable[[BlocksHeld], object]


class BlockFollower:
    """One for each engine. Belongs to one event loop.

    Args:
        runtime: of one engine.
        wants_tokens: listeners are told the entries of stored blocks, too.
    """

    def __init__(self, runtime: Runtime, *, wants_tokens: bool = False) -> None:
        self._runtime = runtime
        self._wants_tokens = wants_tokens
        self._listeners: set[OnBlocks] = set()
        self._asking: asyncio.Task[None] | None = None
        self.held = HeldBlocks()
        """As the last answer says."""

    def listen(self, listener: OnBlocks) -> None:
        """Calls `listener` with every answer that has news, the first time with all that is known now."""
        self._listeners.add(listener)
        if self.held.ledger:
            listener(self.held.whole())
        if self._asking is None:
            self._asking = asyncio.create_task(self._keep_asking(), name="stoker-blocks")

    def leave(self, listener: OnBlocks) -> None:
        """Calls it no more. While no one listens, the engine is not asked."""
        self._listeners.discard(listener)

    async def close(self) -> None:
        """Ends asking. Calling it twice is allowed."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _keep_asking(self) -> None:
        while True:
            if self._listeners:
                try:
                    await self._ask()
                except UnsupportedParameter as error:
                    logger.info("requests are routed by what was sent, not by what is cached: %s", error.message)
                    return
                except StokerError as error:
                    logger.debug("the engine does not say what it holds: %s", error.message)
            await asyncio.sleep(LOOK_S)

    async def _ask(self) -> None:
        """Raises StokerError: the engine cannot answer now, or, if that is UnsupportedParameter, never."""
        before = self.held.ledger, self.held.serial
        question = LookAtBlocks(ledger=before[0], since=before[1], wants_tokens=self._wants_tokens)
        answer = await self._runtime.ask(question)
        if answer.is_whole or (answer.ledger, answer.serial) != before:
            self.held.take(answer)
            for listener in list(self._listeners):
                listener(answer)
