"""Downloads of models, shared by all clients that wait for the same model. Independent of any wire format."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Protocol

from stoker.errors import Cancelled, Overloaded, StokerError
from stoker.models.progress import Progress

_MAX_PULLS = 4
_REPORT_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class PullState:
    """Progress of a download."""

    label: str = ""
    """Name of the file that is being transferred; empty before the first one."""
    total_bytes: int | None = None
    completed_bytes: int = 0


class Resolve(Protocol):
    """Type of `stoker.models.store.resolve`, which downloads a model and raises `StokerError`."""

    def __call__(self, model: str, *, progress: Progress) -> object: ...


class Pulls:
    """All downloads of one server. Belongs to one event loop; each download has its own thread.

    A download without a waiting client is cancelled at its next piece. It counts toward the limit of downloads until
    its thread has ended.
    """

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve
        self._followed: dict[str, _Pull] = {}
        self._running: set[_Pull] = set()

    async def follow(self, model: str) -> AsyncGenerator[PullState, None]:
        """Downloads a model to this disk. Yields the progress at times, and ends when the model is complete.

        Raises:
            StokerError: the model cannot be downloaded.
            Overloaded: too many models are being downloaded.
        """
        pull = self._followed.get(model) or self._start(model)
        pull.num_readers += 1
        try:
            async for state in pull.states():
                yield state
        finally:
            pull.num_readers -= 1
            if not pull.num_readers:
                pull.give_up()
                self._forget(pull)

    def _start(self, model: str) -> _Pull:
        if len(self._running) >= _MAX_PULLS:
            raise Overloaded(f"{_MAX_PULLS} models are being downloaded already", retry_after_s=30.0)
        pull = _Pull(model, self._resolve, self._running.discard)
        pull.thread.start()
        self._running.add(pull)
        self._followed[model] = pull
        return pull

    def _forget(self, pull: _Pull) -> None:
        if self._followed.get(pull.model) is pull:
            del self._followed[pull.model]


async def first_news(states: AsyncGenerator[PullState, None]) -> PullState | None:
    """Waits for the first state with a file; most errors occur before it. None = the model was on disk already."""
    async for state in states:
        if state.label:
            return state
    return None


class _Pull:
    """One download, on its own thread. The instance is also the `Progress` object that the transfer reports to."""

    def __init__(self, model: str, resolve: Resolve, on_end: Callable[[_Pull], None]) -> None:
        self.model = model
        self.num_readers = 0
        self.thread = threading.Thread(target=self._run, name="stoker-pull", daemon=True)
        self._resolve = resolve
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._state = PullState()
        self._changed = asyncio.Event()
        self._is_over = False
        self._error: BaseException | None = None
        self._is_given_up = threading.Event()
        self._reported_at = 0.0

    async def states(self) -> AsyncGenerator[PullState, None]:
        """Yields the newest state after every change, the last one too, until the download ends.

        Raises:
            StokerError: the download failed.
        """
        told = None
        while True:
            changed, is_over, state = self._changed, self._is_over, self._state
            if state is not told:
                told = state
                yield state
            if is_over:
                break
            await changed.wait()
        if self._error is not None:
            raise self._error

    def give_up(self) -> None:
        self._is_given_up.set()

    def start(self, total_bytes: int | None, label: str) -> None:
        self._check()
        self._set(PullState(label, total_bytes))

    def advance(self, num_bytes: int) -> None:
        self._check()
        now = time.monotonic()
        state = PullState(self._state.label, self._state.total_bytes, self._state.completed_bytes + num_bytes)
        if now - self._reported_at >= _REPORT_EVERY_S or state.completed_bytes == state.total_bytes:
            self._reported_at = now
            self._set(state)
        else:
            self._state = state

    def close(self) -> None:
        """The end of the progress; does nothing, because `_run` reports the outcome."""

    def _check(self) -> None:
        if self._is_given_up.is_set():
            raise Cancelled(f"no client waits for {self.model} any more")

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            self._resolve(self.model, progress=self)
        except StokerError as refusal:
            error = refusal
        except BaseException as bug:
            error = bug
            raise
        finally:
            self._tell(lambda: self._end(error))

    def _set(self, state: PullState) -> None:
        self._state = state
        self._tell(self._wake)

    def _tell(self, report: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed: the server has ended
            self._loop.call_soon_threadsafe(report)

    def _end(self, error: BaseException | None) -> None:
        self._is_over, self._error = True, error
        self._on_end(self)
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
