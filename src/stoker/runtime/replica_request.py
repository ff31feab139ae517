"""One request and its way through the replicas of a model: where it is, and whether it may move. It sends nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace

from stoker.engine.protocol import Accepted, Output, Submit
from stoker.errors import EngineCrashed, StokerError
from stoker.runtime.replica_config import MAX_REPLICAS
from stoker.runtime.routing import Beginning, beginning_of

_MAX_ATTEMPTS = 2 * MAX_REPLICAS
"""Maximum number of times that a request is sent to a replica, if all refuse it."""


def beginning_of_submit(submit: Submit) -> Beginning:
    """The prefix keys and size of a request's prompt. Keys depend on its adapters, as cached KV does.

    There are no keys if the request's KV is not to be cached.
    """
    found = beginning_of(submit.prompt, repr(submit.adapters).encode())
    return found if submit.cache_prompt else replace(found, keys=())


class ReplicaRequest:
    """The state of one request, until its caller has the answer or has left. Belongs to one event loop.

    Args:
        submit: the request as the caller submitted it.
        deadline: the time on the caller's clock when the request times out; None = never.
    """

    def __init__(self, submit: Submit, deadline: float | None) -> None:
        self.submit = submit
        self.deadline = deadline
        self.beginning = beginning_of_submit(submit)
        self.avoids: set[int] = set()
        """Replicas that failed or refused the request, or that it has left, where its id may still be in use."""
        self.replica: int | None = None
        self.patience_ends = float("-inf")
        """The time until which the request waits for a replica to come back; only a crash extends it."""
        self.is_recalled = False
        """The request is to leave the replica in whose queue it waits."""
        self.has_begun = False
        """The request has output, and must stay at its replica."""
        self._waiting: asyncio.Timeout | None = None
        """The timeout around the wait for the next event, which `recall` uses to end that wait."""
        self._left: int | None = None
        """The replica that the request was recalled from. The request may go back there if no other one takes it."""
        self._is_here = False
        """The replica has accepted the request. Before that, the id may stay in use there after the request leaves."""
        self._is_accepted = self._has_crashed = self._was_recalled = False
        self._num_attempts = 0

    @property
    def may_be_recalled(self) -> bool:
        """A request is moved at most once, and only from a replica that can take it back."""
        return self._is_here and not (self.has_begun or self._was_recalled)

    def go_to(self, replica: int) -> None:
        """Notes that the request is sent to this replica."""
        self.replica, self.is_recalled, self._is_here = replica, False, False

    def recall(self) -> None:
        """Recalls the request: `followed` ends at once if it waits for an event, else after the event it yielded."""
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
        """The events of the request at a replica, each to be given to `passes`; ends early if the request is recalled.

        A recall is possible only before the first output.
        """
        while not self.has_begun:
            event = await self._next(events)
            if event is None:
                return
            yield event
        async for event in events:
            yield event

    def passes(self, event: Accepted | Output) -> bool:
        """Notes an event; returns whether the caller gets it. The caller gets only the first `Accepted`."""
        if isinstance(event, Output):
            if event.progress is None:
                self.has_begun, self.is_recalled = True, False
            return True
        is_news = not self._is_accepted
        self._is_accepted = self._is_here = True
        return is_news

    def may_move(self, error: StokerError, replica: int) -> bool:
        """Whether the request may move to another replica after `replica` has failed with `error`."""
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
