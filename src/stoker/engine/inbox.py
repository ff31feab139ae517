"""Buffers the unread outputs of one request between the event loop and its reader (back-pressure). Drops none."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

from stoker.engine.protocol import Accepted, Output
from stoker.engine.traces import merged
from stoker.errors import StokerError


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxLimits:
    """Limits on how far a reader may lag."""

    max_separate: int = 16
    """Number of unread outputs above which the reader gets them merged into one."""
    pause_bytes: int = 256 * 2**10
    """Unread bytes, roughly, above which the request is paused."""
    resume_bytes: int = 64 * 2**10
    """Unread bytes, roughly, at which a paused request resumes."""
    max_bytes: int = 4 * 2**20
    """Unread bytes, roughly, above which the request is cancelled. Outputs sent before a pause should not reach it."""
    max_idle_s: float = 120.0
    """Seconds without a read, while outputs are unread, after which the request is cancelled."""


class Inbox:
    """A queue of events from the event loop, which must not wait, to one reader on the same loop, which may wait.

    Args:
        limits: how far the reader may fall behind.
        clock: seconds; only differences count.
    """

    def __init__(self, limits: InboxLimits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._unread: deque[Accepted | Output] = deque()
        self._num_bytes = 0
        self._read_at = clock()
        """When the reader last took an event, or the empty inbox got one. Valid only while events are unread."""
        self._error: StokerError | None = None
        self._waiter: asyncio.Future[None] | None = None
        """The future that wakes the reader while it waits."""

    @property
    def is_overdue(self) -> bool:
        """The reader has fallen too far behind, in time or in bytes: the request should be cancelled."""
        return bool(self._unread) and (self.patience_s <= 0 or self._num_bytes > self._limits.max_bytes)

    @property
    def patience_s(self) -> float:
        """Seconds left in which the reader must take an event; `max_idle_s` while nothing is unread."""
        return self._limits.max_idle_s - (self._clock() - self._read_at) if self._unread else self._limits.max_idle_s

    @property
    def is_behind(self) -> bool:
        """More than `pause_bytes` are unread: the request should pause."""
        return self._num_bytes > self._limits.pause_bytes

    @property
    def has_caught_up(self) -> bool:
        """No more than `resume_bytes` are unread: the request may resume."""
        return self._num_bytes <= self._limits.resume_bytes

    def put(self, event: Accepted | Output) -> None:
        """Adds an event; never waits."""
        if not self._unread:
            self._read_at = self._clock()
        self._unread.append(event)
        self._num_bytes += size_of(event)
        self._wake()

    def end(self, error: StokerError) -> None:
        """Ends the inbox: after the unread events, the reader gets the error."""
        self._error = error
        self._wake()

    async def get(self) -> Accepted | Output:
        """Waits for the next event and returns it. A late reader gets several outputs merged into one.

        Raises:
            StokerError: the error given to `end`, when all events are read.
        """
        while not self._unread and self._error is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if not self._unread:
            assert self._error is not None
            raise self._error
        event = self._unread.popleft()
        if isinstance(event, Output) and len(self._unread) >= self._limits.max_separate:
            rest = [later for later in self._unread if isinstance(later, Output)]
            self._unread.clear()
            event = merge([event, *rest])
        if not self._unread:
            self._num_bytes = 0
            return event
        self._num_bytes -= size_of(event)
        self._read_at = self._clock()
        return event

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def merge(outputs: Sequence[Output]) -> Output:
    """One output that stands for consecutive outputs of one request."""
    last = outputs[-1]
    has_logprobs = any(output.logprobs is not None for output in outputs)
    return Output(
        last.request_id,
        "".join(output.text for output in outputs),
        list(chain.from_iterable(output.token_ids for output in outputs)),
        last.usage,
        list(chain.from_iterable(output.logprobs or () for output in outputs)) if has_logprobs else None,
        last.finish_reason,
        last.stop_match,
        outputs[0].prompt,
        last.timing,
        _marks(outputs),
        last.progress if all(output.progress is not None for output in outputs) else None,
        merged([output.trace for output in outputs if output.trace is not None]),
    )


def _marks(outputs: Sequence[Output]) -> list[tuple[int, str]]:
    """The marks of all outputs, at their offsets in the whole text."""
    starts = accumulate((len(output.text) for output in outputs), initial=0)
    return [
        (start + offset, token)
        for start, output in zip(starts, outputs, strict=False)
        for offset, token in output.marks
    ]


def size_of(event: Accepted | Output) -> int:
    """The approximate size of an event in memory, in bytes."""
    if isinstance(event, Accepted):
        return 64
    num_bytes = 256 + 4 * len(event.text) + 36 * len(event.token_ids)
    if event.logprobs is None and event.prompt is None:
        return num_bytes
    positions = (*(event.logprobs or ()), *(event.prompt or ()))
    return num_bytes + 160 * sum(1 + len(position.top) for position in positions)
