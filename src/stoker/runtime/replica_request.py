"""One request on its way through the replicas of a model: where it is, and where it may go. It sends nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace

from stoker.engine.protocol import Accepted, Output, Submit
from stoker.errors import EngineCrashed, StokerError
from stoker.runtime.replica_config import MAX_REPLICAS
from stoker.runtime.routing import Beginning, beginning_of

_MAX_ATTEMPTS = 2 * MAX_REPLICAS
"""If every engine that it is given to refuses it."""


def beginning_of_submit(submit: Submit) -> Beginning:
    """Of its prompt, with what its cached KV depends on besides. Without keys if its KV is for no other request."""
    found = beginning_of(submit.prompt, repr(submit.adapters).encode())
    return found if submit.cache_prompt else replace(found, keys=())


class ReplicaRequest:
    """Belongs to one event loop, until its caller has left.

    Args:
        submit: as it came.
        deadline: on the clock; None = there is none.
    """

    def __init__(self, submit: Submit, deadline: float | None) -> None:
        self.submit = submit
        self.deadline = deadline
        self.beginning = beginning_of_submit(submit)
        self.avoids: set[int] = set()
        """Replicas that could not take it, or that it has left: its id may still be known there."""
        self.replica: int | None = None
        self.patience_ends = float("-inf")
        """Until when the request waits for any replica to come back; only a crash extends it."""
        self.is_recalled = False
        """It is to leave the replica where it waits."""
        self.has_begun = False
        """An output was seen: it stays where it is."""
        self._waiting: asyncio.Timeout | None = None
        """For its next event, as long as it may be recalled."""
        self._left: int | None = None
        """The replica that would have computed it: it takes it again, if no other one does."""
        self._is_here = False
        """Its replica has accepted it. Until then its id may be known there although it has left."""
        self._is_accepted = self._has_crashed = self._was_recalled = False
        self._num_attempts = 0

    @property
    def may_be_recalled(self) -> bool:
        """A request is moved at most once, and only from a replica that can take it back."""
        return self._is_here and not (self.has_begun or self._was_recalled)

    def go_to(self, replica: int) -> None:
        """It is given to this one."""
        self.replica, self.is_recalled, self._is_here = replica, False, False

    def recall(self) -> None:
        """Ends `followed` at the next point where nothing is interrupted halfway."""
        assert self.may_be_recalled
        assert self.replica is not None, "it waits somewhere"
        self._left = self.replica
        self.avoids.add(self.replica)
        self.is_recalled = self._was_recalled = True
        if self._waiting is not None:
            self._waiting.reschedule(asyncio.get_running_loop().time())

    async def followed(
        self, events: AsyncGenerator[Accepted | Output, None]
    ) -> AsyncGenerator[Accepted | Output, None]:
        """What a replica makes of it, to be shown to `passes`; ends early, before any output, if it is recalled."""
        while not self.has_begun:
            event = await self._next(events)
            if event is None:
                return
            yield event
        async for event in events:
            yield event

    def passes(self, event: Accepted | Output) -> bool:
        """Notes what has come, and says whether the caller is to have it: it is accepted only once."""
        if isinstance(event, Output):
            if event.progress is None:
                self.has_begun, self.is_recalled = True, False
            return True
        is_news = not self._is_accepted
        self._is_accepted = self._is_here = True
        return is_news

    def may_move(self, error: StokerError, replica: int) -> bool:
        """Whether another replica may try after this one has failed."""
        is_crash = isinstance(error, EngineCrashed)
        is_second = is_crash and self._has_crashed
        self._has_crashed |= is_crash
        self._num_attempts += 1
        if self._left is not None:
            self.avoids.discard(self._left)
            self._left = None
        self.avoids.add(replica)
        return not (self.has_begun or is_second or self._num_attempts >= _MAX_ATTEMPTS)

    async def _next(self, events: AsyncGenerator[Accepted | Output, None]) -> Accepted | Output | None:
        if self.is_recalled:
            return None
        try:
            async with asyncio.timeout(None) as self._waiting:
                return await anext(events, None)
        except TimeoutError:
            if self.is_recalled:
                return None
            raise
        finally:
            self._waiting = None
