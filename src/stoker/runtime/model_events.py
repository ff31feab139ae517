"""Events about models that are loaded, unloaded and downloaded. A slow subscriber is dropped, not waited for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from stoker.errors import Overloaded
from stoker.models.memory_plan import MemoryPlan

logger = logging.getLogger(__name__)

STAGES = ("measure", "make_room", "load")
"""Stages of loading a model, in this order; a stage may be left out."""

_MAX_FOLLOWERS = 64
_MAX_UNREAD = 256
"""Maximum number of unread events of a follower; one that reads no faster is dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEvent:
    """A change in the state of a model."""

    model: str
    state: str
    """`loading`, `loaded`, `unloaded` or `removed`; for downloads `downloading`, `downloaded` or `download_failed`; or
    `listed`: the list of models has changed."""
    stage: str = ""
    """Stage of `loading`: one of `STAGES`."""
    plan: MemoryPlan | None = None
    """Memory plan of the model, at the beginning of the stage `load`."""
    loaded_part: float | None = None
    """Progress in the stage `load`: the loaded fraction of the weights. Range 0 … 1; it never falls."""
    reason: str = ""
    """Reason of `unloaded`: `asked`, `expired`, `evicted`, `replaced` or `failed`."""
    message: str = ""
    """The error's message, if something failed."""
    file: str = ""
    """File that is being transferred, in the state `downloading`."""
    completed_bytes: int = 0
    total_bytes: int = 0
    """Size of the present transfer, of which `completed_bytes` are done; 0 = unknown."""


class ModelEvents:
    """Publishes the events of a server's models to its subscribers. Belongs to one event loop."""

    def __init__(self) -> None:
        self._followers: set[asyncio.Queue[ModelEvent | None]] = set()
        self._listeners: list[Callable[[ModelEvent], None]] = []

    def listen(self, listener: Callable[[ModelEvent], None]) -> None:
        """Adds a function that is called with every event; it must not block."""
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
        """Raises Overloaded if too many clients follow already."""
        if len(self._followers) >= _MAX_FOLLOWERS:
            raise Overloaded(f"{_MAX_FOLLOWERS} clients follow the models already", retry_after_s=5.0)

    async def follow(self) -> AsyncGenerator[ModelEvent, None]:
        """All events from now on; the stream ends on `close`, or if too many events stay unread."""
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
