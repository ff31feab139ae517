"""What a follower of an engine is told beside its state: models that are loaded and unloaded, and engines that die."""

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
    """What has become of a model."""
    why = event.message or event.reason or event.stage
    return News(t=time.time(), kind=event.state, id=event.model, part=event.loaded_part, why=why)


class EngineFailures:
    """Notices when the engines of one model cannot be asked any more, and when they can again.

    Args:
        model: its id.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._is_down = False

    def of(self, error: StokerError | None, *, is_loaded: bool) -> News | None:
        """The news of a look at the engines, if there is any. A model that was unloaded has not failed."""
        was_down, self._is_down = self._is_down, error is not None and (is_loaded or self._is_down)
        if self._is_down == was_down:
            return None
        kind, why = ("crashed", "" if error is None else error.message) if self._is_down else ("restarted", "")
        return News(t=time.time(), kind=kind, id=self._model, part=None, why=why)


async def both(
    first: AsyncGenerator[FirstT, None], second: AsyncGenerator[SecondT, None]
) -> AsyncGenerator[FirstT | SecondT, None]:
    """The items of two generators in the order in which they come, to the end of the one that ends first."""
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
