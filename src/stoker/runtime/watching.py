"""Live views of a model's engines for monitoring clients: polls the engines once for all clients that follow a model.

Polling runs only while a client follows. A slow client loses the oldest records when the ring buffer is full.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

import msgspec

from stoker.engine.question_messages import Look
from stoker.engine.view import EngineView, Moment, StepRecord
from stoker.errors import Overloaded, StokerError
from stoker.runtime.base import Runtime

logger = logging.getLogger(__name__)

HZ = 10.0
"""Polls per second."""
_ASK_S = 5.0
"""Timeout of a poll, in seconds. An engine that does not answer is in a long step; it is polled again."""
_FAILED_WAIT_S = 1.0
_IDLE_WAIT_S = 0.25
"""Minimum seconds between two polls of engines without requests."""
_MAX_FOLLOWERS = 16
_MAX_RECORDS = 1024
_FIRST_STEPS, _FIRST_MOMENTS = 200, 100
"""Past steps and moments that a new follower gets at most: its first event has at most 64 kB."""

Find = Callable[[], Runtime]
"""Returns the model's present runtime; raises `StokerError` if it is not loaded. Must not load the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """An update for one follower: what it has not seen yet."""

    engines: tuple[EngineView, ...]
    """The newest view of each engine, with the new steps and moments. Empty = no engine has answered."""
    error: StokerError | None = None
    """Why no engine can be asked; None = no poll has failed since the last answer, other than by its timeout."""


@dataclass(slots=True, eq=False)
class _Track:
    """The newest view of one engine, with a ring buffer of its records."""

    view: EngineView
    num_steps: int = 0
    """Number of steps ever put into the ring buffer."""
    num_moments: int = 0
    steps: deque[StepRecord] = field(default_factory=lambda: deque(maxlen=_MAX_RECORDS))
    moments: deque[Moment] = field(default_factory=lambda: deque(maxlen=_MAX_RECORDS))

    def push(self, view: EngineView) -> None:
        self.view = view
        self.num_steps += len(view.steps)
        self.num_moments += len(view.moments)
        self.steps.extend(view.steps)
        self.moments.extend(view.moments)


class Watch:
    """Polls one model for all its followers. Belongs to one event loop.

    Args:
        find: returns the model's runtime.
        hz: polls per second.
    """

    def __init__(self, find: Find, hz: float = HZ) -> None:
        self._find = find
        self._every_s = 1 / hz
        self._tracks: dict[int, _Track] = {}
        self._error: StokerError | None = None
        self._num_looks = 0
        self._news = asyncio.Condition()
        self._num_followers = 0
        self._task: asyncio.Task[None] | None = None

    def check_room(self) -> None:
        """Raises Overloaded if too many clients follow the model already."""
        if self._num_followers >= _MAX_FOLLOWERS:
            raise Overloaded(f"{_MAX_FOLLOWERS} clients watch this model already", retry_after_s=5.0)

    async def follow(self, every_s: float = 0.0) -> AsyncGenerator[Sight, None]:
        """Updates about the model; the first one includes recent records. The stream does not end by itself.

        Args:
            every_s: minimum seconds between two updates.

        Raises:
            Overloaded: too many clients follow the model already.
        """
        self.check_room()
        self._num_followers += 1
        if self._num_followers == 1:
            self._task = asyncio.create_task(self._look_on(), name="stoker-watch")
        seen: dict[str, tuple[int, int]] = {}
        num_looks = self._num_looks
        try:
            while True:
                async with self._news:
                    await self._news.wait_for(lambda known=num_looks: self._num_looks > known)
                num_looks = self._num_looks
                yield self._sight(seen)
                await asyncio.sleep(every_s)
        finally:
            self._num_followers -= 1
            if not self._num_followers:
                self._stop()

    def _stop(self) -> None:
        assert self._task is not None, "the watch was followed before"
        self._task.cancel()
        self._task = None
        self._tracks.clear()

    def _sight(self, seen: dict[str, tuple[int, int]]) -> Sight:
        if self._error is not None:
            return Sight(engines=(), error=self._error)
        engines: list[EngineView] = []
        for track in self._tracks.values():
            first = max(0, track.num_steps - _FIRST_STEPS), max(0, track.num_moments - _FIRST_MOMENTS)
            num_steps, num_moments = seen.get(track.view.recorder, first)
            seen[track.view.recorder] = track.num_steps, track.num_moments
            engines.append(_with_news(track, track.num_steps - num_steps, track.num_moments - num_moments))
        return Sight(engines=tuple(engines))

    async def _look_on(self) -> None:
        while True:
            try:
                await self._look()
                self._error, wait_s = None, self._every_s if self._is_busy else max(self._every_s, _IDLE_WAIT_S)
            except StokerError as error:
                self._tracks.clear()
                self._error, wait_s = error, _FAILED_WAIT_S
            except TimeoutError:
                wait_s = self._every_s
            except Exception as bug:  # followers wait for the next update, and none would come
                logger.exception("a look at engines failed")
                self._tracks.clear()
                self._error = StokerError(f"the engines cannot be looked at: {type(bug).__name__}")
                wait_s = _FAILED_WAIT_S
            async with self._news:
                self._num_looks += 1
                self._news.notify_all()
            await asyncio.sleep(wait_s)

    @property
    def _is_busy(self) -> bool:
        return any(track.view.sequences or track.view.steps for track in self._tracks.values())

    async def _look(self) -> None:
        since = {number: track.view.serial for number, track in self._tracks.items()}
        async with asyncio.timeout(_ASK_S):
            glimpse = await self._find().ask(Look(since=since))
        known = {view.replica: self._tracks.get(view.replica) for view in glimpse.engines}
        tracks: dict[int, _Track] = {}
        for view in glimpse.engines:
            track = known[view.replica]
            if track is None or track.view.recorder != view.recorder:
                track = _Track(view)
            track.push(view)
            tracks[view.replica] = track
        self._tracks = tracks


class Watches:
    """All watches of a server, one for each model that was followed. Belongs to one event loop."""

    def __init__(self) -> None:
        self._watches: dict[str, Watch] = {}

    def of(self, model_id: str, find: Find) -> Watch:
        """The watch of this model, which is made at the first call."""
        watch = self._watches.get(model_id)
        if watch is None:
            watch = self._watches[model_id] = Watch(find)
        return watch


def _with_news(track: _Track, num_steps: int, num_moments: int) -> EngineView:
    return msgspec.structs.replace(
        track.view,
        steps=list(track.steps)[-num_steps:] if num_steps > 0 else [],
        moments=list(track.moments)[-num_moments:] if num_moments > 0 else [],
    )
