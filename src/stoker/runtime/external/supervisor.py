"""Supervises one external server: starts it, watches it, and restarts it. It knows nothing of requests.

```
           start         answers                     exit, silence or stall
(nothing) ------> starting ----> ready ------------------------> restarting
                     | any error                     answers        |  |  (back-off: 0.1 s, doubling to 10 s)
                     v                             ready <----------+  |
                  failed, start() raises                               |
                                         close() from anywhere -> closed
```
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from stoker.engine.config import SupervisionConfig
from stoker.engine.supervisor import State
from stoker.errors import EngineCrashed, ModelNotLoaded, StokerError
from stoker.runtime.external.client import BrokenOff
from stoker.runtime.external.incarnation import DEATH_S, PROBE_S, Incarnation
from stoker.runtime.external.program import Program

logger = logging.getLogger(__name__)


class ServerSupervisor:
    """Owns the server's process and those that replace it. Belongs to one event loop.

    Args:
        program: the program to start.
        look: called with a server after each health check that it has answered, about every `heartbeat_every_s`.
        stalled_s: returns for how many seconds requests have been waiting without progress.
        supervision: time limits of the supervision.
    """

    def __init__(
        self,
        program: Program,
        look: Callable[[Incarnation], Awaitable[None]],
        stalled_s: Callable[[], float],
        supervision: SupervisionConfig,
    ) -> None:
        self._program = program
        self._look = look
        self._stalled_s = stalled_s
        self._times = supervision
        self._present: Incarnation | None = None
        self._task: asyncio.Task[None] | None = None
        self._first: asyncio.Future[None] | None = None
        self._is_ending = False
        self._state = State.STARTING
        self._changed = asyncio.Event()
        """Set, and replaced by a new event, whenever a server begins to answer or is gone."""
        self._num_failures = 0
        """Number of consecutive failures, for the back-off."""
        self.ready_at = 0.0
        """The time on the event loop's clock when the present server, or the last one, began to answer."""
        self.num_restarts = 0
        self.last_error: str | None = None

    @property
    def state(self) -> State:
        is_late = self._stalled_s() > self._times.stall_after_s
        return State.STALLED if self._state is State.READY and is_late else self._state

    @property
    def pid(self) -> int | None:
        """The process id of the present server."""
        return self._present.process.pid if self._present is not None else None

    @property
    def present(self) -> Incarnation:
        """The server that answers now.

        Raises:
            ModelNotLoaded: no server answers now.
        """
        if self._present is None:
            raise self._not_ready()
        return self._present

    async def start(self) -> None:
        """Starts the first server and returns when it answers. Call it once.

        Raises:
            StokerError: the server cannot be started; no process is left running.
        """
        assert self._task is None, "started once"
        self._first = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._keep_alive(), name=f"stoker-{self._program.name}")
        self._task.add_done_callback(self._note_fault)
        try:
            await asyncio.wait([self._first, self._task], return_when=asyncio.FIRST_COMPLETED)
            if not self._first.done():
                raise ModelNotLoaded("the model was closed while it was loaded")
            self._first.result()
        except (StokerError, asyncio.CancelledError):
            await self._free()
            raise

    async def death_of(self, incarnation: Incarnation) -> str | None:
        """Why that server is gone; None if it still runs `DEATH_S` seconds after its connection broke."""
        deadline = asyncio.get_running_loop().time() + DEATH_S
        while self._present is incarnation:
            if not await self._wait_for_change(deadline):
                return None
        return self.last_error or "is gone"

    async def successor(self, reason: str) -> Incarnation:
        """The server that answers now, or else the restarted one, once it answers.

        Raises:
            EngineCrashed: the restart takes longer than `restart_wait_s`.
            ModelNotLoaded: the supervisor is closed or has failed, so that no server will answer.
        """
        deadline = asyncio.get_running_loop().time() + self._times.restart_wait_s
        while self._present is None:
            if self._state in (State.CLOSED, State.FAILED):
                raise self._not_ready()
            if not await self._wait_for_change(deadline):
                raise self.crash(reason)
        return self._present

    def closed_error(self) -> ModelNotLoaded | None:
        """The error of every request after `close`; None before."""
        return self._not_ready() if self._state is State.CLOSED else None

    def crash(self, reason: str) -> EngineCrashed:
        """The error for a request whose server died."""
        name = self._program.name
        return EngineCrashed(f"{name} {reason} while it worked on the request; it is being started again")

    async def close(self) -> None:
        """Stops the server within a bounded time. Calling it twice is allowed."""
        self._state = State.CLOSED
        self._note_change()
        await self._free()

    async def _free(self) -> None:
        if self._task is None:
            return
        if not self._is_ending:  # a second cancellation would interrupt the cleanup of the first
            self._is_ending = True
            self._task.cancel()
        await asyncio.wait([self._task])

    def _note_fault(self, task: asyncio.Task[None]) -> None:
        """Marks the model as failed if the supervising task itself fails: it must not look healthy."""
        if task.cancelled() or (fault := task.exception()) is None:
            return
        logger.error("the supervisor of %s failed", self._program.name, exc_info=fault)
        self._state, self.last_error = State.FAILED, f"is unsupervised: {fault!r}"
        self._note_change()

    def _not_ready(self) -> ModelNotLoaded:
        if self._state is State.CLOSED:
            return ModelNotLoaded("the model was closed")
        because = f" ({self._program.name} {self.last_error})" if self.last_error else ""
        message = f"the model is {self._state}{because}"
        if self._state is State.RESTARTING:
            return ModelNotLoaded(message, retry_after_s=self._times.backoff_max_s)
        return ModelNotLoaded(message)

    async def _wait_for_change(self, deadline: float) -> bool:
        try:
            async with asyncio.timeout_at(deadline):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _note_change(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _keep_alive(self) -> None:
        assert self._first is not None
        while True:
            try:
                incarnation = await Incarnation.start(self._program)
            except StokerError as error:
                if not self._first.done():
                    self._state, self.last_error = State.FAILED, error.message
                    self._first.set_exception(error)
                    return
                reason = error.message.removeprefix(f"{self._program.name} ")
                self._num_failures += 1
            else:
                reason = await self._serve(incarnation)
            self._state, self.last_error = State.RESTARTING, reason
            pause_s = self._backoff_s()
            logger.error("%s %s; starting another in %.1f s", self._program.name, reason, pause_s)
            await asyncio.sleep(pause_s)
            self.num_restarts += 1

    async def _serve(self, incarnation: Incarnation) -> str:
        """Watches the server until it is gone; returns why."""
        assert self._first is not None
        clock = asyncio.get_running_loop().time
        self._present, self._state, self.ready_at = incarnation, State.READY, clock()
        self._note_change()
        if not self._first.done():
            self._first.set_result(None)
        try:
            reason = await self._watch(incarnation)
            self._present, self._state, self.last_error = None, State.RESTARTING, reason
            self._note_change()
        finally:
            self._present = None
            await incarnation.stop()
        self._num_failures = 1 if clock() - self.ready_at >= self._times.healthy_s else self._num_failures + 1
        return reason

    async def _watch(self, incarnation: Incarnation) -> str:
        clock = asyncio.get_running_loop().time
        every_s, silent_s, looked_at = self._times.heartbeat_every_s, 0.0, clock()
        while not await incarnation.process.wait(every_s):
            is_alive = await self._is_alive(incarnation)
            # A time in which this process itself was paused does not count as silence of the server.
            silent_s = 0.0 if is_alive else silent_s + min(clock() - looked_at, every_s + PROBE_S)
            looked_at = clock()
            if silent_s > self._times.heartbeat_timeout_s:
                return f"{incarnation.process.pid} said nothing for {silent_s:.0f} s"
            if self._stalled_s() > self._times.stall_kill_s:
                return f"{incarnation.process.pid} computed nothing for {self._stalled_s():.0f} s"
        return incarnation.process.describe_end()

    async def _is_alive(self, incarnation: Incarnation) -> bool:
        try:
            await incarnation.client.get("/health", PROBE_S)
        except (BrokenOff, StokerError):
            return False
        with contextlib.suppress(BrokenOff, StokerError):  # a busy server may answer only health checks
            await self._look(incarnation)
        return True

    def _backoff_s(self) -> float:
        return min(self._times.backoff_min_s * 2 ** min(self._num_failures - 1, 30), self._times.backoff_max_s)
