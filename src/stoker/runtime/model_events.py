"""Events about models that are loaded and unloaded. A slow subscriber is not waited for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from stoker.errors import Overloaded
from stoker.models.memory_plan import MemoryPlan

logger = logging.getLogger(__name__)

STAGES = ("measure", "make_room", "load")
"""Of loading, in this order; one may be left out."""

_MAX_FOLLOWERS = 64
_MAX_UNREAD = 256
"""Of one follower; with more he is taken for lost, and his news end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEvent:
    """Something happened to a model."""

    model: str
    state: str
    """`loading`, `loaded`, `unloaded`, or `removed`; of downloads `downloading`, `downloaded` or `download_failed`; or
    `listed`: the list of models is another one."""
    stage: str = ""
    """Of `loading`: one of `STAGES`."""
    plan: MemoryPlan | None = None
    """Of the stage `load`, when it begins."""
    loaded_part: float | None = None
    """Of the stage `load`, again and again: how far the weights are. Range 0 … 1; it never falls."""
    reason: str = ""
    """Of `unloaded`: `asked`, `expired`, `evicted`, `replaced`, `failed`."""
    message: str = ""
    """Of what failed."""
    file: str = ""
    """Of `downloading`: what is being transferred, and how far it is."""
    completed_bytes: int = 0
    total_bytes: int = 0
    """0 = not known."""


class ModelEvents:
    """A board with the news; belongs to one event loop."""

    def __init__(self) -> None:
        self._followers: set[asyncio.Queue[ModelEvent | None]] = set()
        self._listeners: list[Callable[[ModelEvent], None]] = []

    def listen(self, listener: Callable[[ModelEvent], None]) -> None:
        """Has it called with all news; it must not wait."""
        self._listeners.append(listener)

    def publish(self, event: ModelEvent) -> None:
        plan = f": {event.plan}" if event.plan is not None else ""
        how_far = f"{event.loaded_part:.0%}" if event.loaded_part is not None else ""
        why = " ".join(part for part in (event.stage, how_far, event.reason, event.message) if part)
        level = logging.DEBUG if how_far or event.file else logging.INFO
        logger.log(level, "%s is %s%s%s", event.model, event.state, f" ({why})" if why else "", plan)
        for listener in self._listeners:
            listener(event)
        for follower in list(self._followers):
            if follower.full():
                self._followers.discard(follower)
                follower.get_nowait()
                follower.put_nowait(None)
            else:
                follower.put_nowait(event)

    def check_room(self) -> None:
        """Raises Overloaded if too many follow already."""
        if len(self._followers) >= _MAX_FOLLOWERS:
            raise Overloaded(f"{_MAX_FOLLOWERS} clients follow the models already", retry_after_s=5.0)

    async def follow(self) -> AsyncGenerator[ModelEvent, None]:
        """All news from now on; they end when the board is closed, or if they are not read."""
        inbox: asyncio.Queue[ModelEvent | None] = asyncio.Queue(_MAX_UNREAD)
        self._followers.add(inbox)
        try:
            while (event := await inbox.get()) is not None:
                yield event
        finally:
            self._followers.discard(inbox)

    def close(self) -> None:
        """Ends all subscriptions."""
        for follower in self._followers:
            if follower.full():
                follower.get_nowait()
            follower.put_nowait(None)
        self._followers.clear()
