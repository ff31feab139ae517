"""Polls an engine for the blocks of its KV cache, and passes changes on to listeners. It knows no requests."""

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
"""Seconds between two questions to an engine."""

OnBlocks: TypeAlias = Callable[[BlocksHeld], object]


class BlockFollower:
    """Follows the KV blocks of one engine. Belongs to one event loop.

    Args:
        runtime: the engine's runtime.
        wants_tokens: listeners also get the token ids of stored blocks.
    """

    def __init__(self, runtime: Runtime, *, wants_tokens: bool = False) -> None:
        self._runtime = runtime
        self._wants_tokens = wants_tokens
        self._listeners: set[OnBlocks] = set()
        self._asking: asyncio.Task[None] | None = None
        self.held = HeldBlocks()
        """The blocks that the engine held at its last answer."""

    def listen(self, listener: OnBlocks) -> None:
        """Adds a listener. It is called at once with all known blocks, if any, and then with every change."""
        self._listeners.add(listener)
        if self.held.ledger:
            listener(self.held.whole())
        if self._asking is None:
            self._asking = asyncio.create_task(self._keep_asking(), name="stoker-blocks")

    def leave(self, listener: OnBlocks) -> None:
        """Removes a listener. The engine is not polled while there is no listener."""
        self._listeners.discard(listener)

    async def close(self) -> None:
        """Ends polling. Calling it twice is allowed."""
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
        """Raises StokerError if the engine cannot answer now; UnsupportedParameter if it never can."""
        before = self.held.ledger, self.held.serial
        question = LookAtBlocks(ledger=before[0], since=before[1], wants_tokens=self._wants_tokens)
        answer = await self._runtime.ask(question)
        if (answer.ledger, answer.serial) != before:
            self.held.take(answer)
            for listener in list(self._listeners):
                listener(answer)
