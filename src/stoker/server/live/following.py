"""News for the followers of an engine besides its state: models are loaded and unloaded, engines crash and restart."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import TypeVar

from stoker.errors import StokerError
from stoker.runtime.model_events import ModelEvent
from stoker.server.live.types import News

FirstT = TypeVar("FirstT")
SecondT = TypeVar("SecondT")


def model_news(event: ModelEvent) -> News:
    """The news about a change of a model's state."""
    why = event.message or event.reason or event.stage
    return News(t=time.time(), kind=event.state, id=event.model, part=event.loaded_part, why=why)


class EngineFailures:
    """Detects when the engines of one model stop answering, and when they answer again.

    Args:
        model: id of the model.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._is_down = False

    def of(self, error: StokerError | None, *, is_loaded: bool) -> News | None:
        """The news after a query of the engines, which gave `error` or None; None = no news.

        A model that was unloaded has not failed.
        """
        was_down, self._is_down = self._is_down, error is not None and (is_loaded or self._is_down)
        if self._is_down == was_down:
            return None
        kind, why = ("crashed", "" if error is None else error.message) if self._is_down else ("restarted", "")
        return News(t=time.time(), kind=kind, id=self._model, part=None, why=why)


async def both(
    first: AsyncGenerator[FirstT, None], second: AsyncGenerator[SecondT, None]
) -> AsyncGenerator[FirstT | SecondT, None]:
    """Merges two generators in the order of arrival, until one of them ends. Closes both."""
    waiting = {asyncio.ensure_future(_next(source)): source for source in (first, second)}
    try:
        while True:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                source = waiting.pop(task)
                try:
                    item = task.result()
                except StopAsyncIteration:
                    return
                yield item
                waiting[asyncio.ensure_future(_next(source))] = source
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await first.aclose()
        await second.aclose()


async def _next(source: AsyncGenerator[FirstT, None] | AsyncGenerator[SecondT, None]) -> FirstT | SecondT:
    return await anext(source)
