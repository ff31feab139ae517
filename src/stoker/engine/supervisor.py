"""Keeps one engine process alive: starts, watches and restarts it. `Requests` and `Questions` handle what it computes.

```
           start          Ready                     exit, silence or stall
(nothing) ------> starting ----> ready -----------------------> restarting
                     | LoadFailed, exit                Ready        |  |  (back-off: 0.1 s, doubling to 10 s)
                     v                             ready <----------+  |
                  failed, start() raises                               |
                                         close() from anywhere -> closed
```
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

import msgspec
import zmq.asyncio

from stoker.engine.cards import ModelCard, is_same_model
from stoker.engine.channel import Channel
from stoker.engine.child import Child, describe_exit
from stoker.engine.config import AdapterSpec, EngineConfig, SupervisionConfig
from stoker.engine.protocol import (
    EXIT_LOAD_FAILED,
    Accepted,
    Command,
    Failed,
    Frame,
    LoadFailed,
    Loading,
    Output,
    Ready,
    RowsWanted,
)
from stoker.engine.question_messages import Answer
from stoker.engine.stats import EngineStats
from stoker.errors import EngineCrashed, ModelNotLoaded, ResourceExhausted, StokerError, reason_of

logger = logging.getLogger(__name__)

_LAST_WORDS_S = 0.05
"""Seconds to wait for the last frames of a child that has exited."""
_LOAD_ERROR_S = 2.0
"""Seconds to wait for the `LoadFailed` event of a child whose exit code says that it was sent."""
_WATCH_EVERY_S = 1.0
_MAX_NAPS = 16


class State(StrEnum):
    """The state of an engine process. The values appear in messages and health checks."""

    STARTING = "starting"
    READY = "ready"
    STALLED = "stalled"
    """The process is alive, but work waits and no step ends, or it sends no heartbeat."""
    RESTARTING = "restarting"
    FAILED = "failed"
    """The first load failed, and is not tried again."""
    CLOSED = "closed"


class Listener(Protocol):
    """Receives what happens to the engine process. Its methods are called on the event loop and must not wait."""

    def on_ready(self, card: ModelCard) -> None:
        """A child, the first or a restarted one, has loaded its model."""
        ...

    def on_event(self, event: Accepted | Output | Failed | RowsWanted | Answer) -> None:
        """The child has sent an event about one request or question."""
        ...

    def on_down(self, reason: str) -> None:
        """The child has ended; another one will be started."""
        ...


class Supervisor:
    """Owns the child process and the processes that replace it. Belongs to one event loop.

    Args:
        command: command line of a child that runs `serve_engine`.
        config: the model and settings that a child loads.
        listener: notified when a child is ready, sends an event, or has ended.
        supervision: timeouts, and pauses before restarts.
    """

    def __init__(
        self,
        command: Sequence[str],
        config: EngineConfig,
        listener: Listener,
        supervision: SupervisionConfig,
    ) -> None:
        self._command = command
        self._config = config
        self._listener = listener
        self._times = supervision
        self._context: zmq.asyncio.Context | None = None
        self._child: Child | None = None
        self._task: asyncio.Task[None] | None = None
        self._freeing: asyncio.Task[None] | None = None
        self._first: asyncio.Future[ModelCard] | None = None
        self._load_error: StokerError | None = None
        self._ready_at: float | None = None
        """When the current child became ready; None = no child is ready."""
        self._heard_at = 0.0
        """When the current child was started or last sent a frame."""
        self._naps: deque[tuple[float, float]] = deque(maxlen=_MAX_NAPS)
        """Times (begin, end) during which this process itself was suspended, as on a laptop that sleeps."""
        self._num_failures = 0
        """Number of failures in a row."""
        self._launched = config
        """The configuration that the current child was started with."""
        self._is_outdated = False
        """The adapters were changed while the current child was loading, so it has the old ones."""
        self._is_other_model = False
        """The current child has found a different model in the file than the first child."""
        self._state = State.STARTING
        self.heartbeat: EngineStats | None = None
        """The latest heartbeat of the current child."""
        self.loaded_part: float | None = None
        """The fraction of the weights that the current child has loaded, 0 to 1; None = not reported."""
        self.num_restarts = 0
        self.last_error: str | None = None

    @property
    def state(self) -> State:
        is_late = self._late_s() > self._times.stall_after_s
        return State.STALLED if self._state is State.READY and is_late else self._state

    @property
    def child_pid(self) -> int | None:
        """The process id of the current child; None = no child runs."""
        return self._child.pid if self._child is not None else None

    async def start(self) -> ModelCard:
        """Starts the first child and returns when it has loaded its model. Call it once.

        Raises:
            StokerError: the child's own load error; loading is not tried again.
            EngineCrashed: the child died while it loaded.
        """
        assert self._task is None, "started once"
        self._context = zmq.asyncio.Context()
        self._first = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._keep_alive(), name="stoker-supervisor")
        self._task.add_done_callback(self._note_fault)
        try:
            await asyncio.wait([self._first, self._task], return_when=asyncio.FIRST_COMPLETED)
            if not self._first.done():
                raise ModelNotLoaded("the model was closed while it was loaded")
            return self._first.result()
        except (StokerError, asyncio.CancelledError):
            await self._free()
            raise

    def send(self, command: Command) -> None:
        """Gives a command to the child.

        Raises:
            ModelNotLoaded: no child is ready, or the child does not take commands.
            InvalidInput: a string in the command is not valid Unicode.
        """
        if self._child is None or self._ready_at is None:
            raise self._not_ready()
        self._child.channel.send(command)

    def remember_adapters(self, adapters: Sequence[AdapterSpec]) -> None:
        """Sets the adapters that every later child loads, in place of the configured ones. A child that is still
        loading with other adapters is started again.
        """
        self._config = msgspec.structs.replace(self._config, lora=[], adapters=tuple(adapters))

    async def close(self) -> None:
        """Stops the child within a bounded time and frees everything. Calling it twice is allowed."""
        self._state = State.CLOSED
        await self._free()

    async def _free(self) -> None:
        """Frees everything even if the waiting task is cancelled, as when a client disconnects."""
        if self._freeing is None:
            self._freeing = asyncio.create_task(self._free_all(), name="stoker-supervisor-end")
        await asyncio.shield(self._freeing)

    async def _free_all(self) -> None:
        was_ready, self._ready_at = self._ready_at is not None, None
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._child is not None:
            await (self._child.stop(self._times.stop_grace_s) if was_ready else self._child.reap())
            self._child = None
        if self._context is not None:
            self._context.destroy(linger=0)

    def _not_ready(self) -> ModelNotLoaded:
        because = f" ({self.last_error})" if self.last_error else ""
        message = f"the model is {self._state}{because}"
        if self._state is State.RESTARTING:
            return ModelNotLoaded(message, retry_after_s=self._times.backoff_max_s)
        return ModelNotLoaded(message)

    def _note_fault(self, task: asyncio.Task[None]) -> None:
        """Marks the engine as failed after an internal error of this supervisor, which no longer watches the child."""
        if task.cancelled() or (fault := task.exception()) is None:
            return
        logger.error("the supervisor of the engine process failed", exc_info=fault)
        self._state, self._ready_at, self.last_error = State.FAILED, None, f"is unsupervised: {fault!r}"
        self._listener.on_down(self.last_error)

    async def _keep_alive(self) -> None:
        assert self._first is not None
        while True:
            reason = await self._run_child()
            if self._is_outdated:
                logger.info("the engine process %s; starting another", reason)
                self._is_outdated, self._num_failures = False, 0
                continue
            if not self._first.done():
                self._state = State.FAILED
                self._first.set_exception(self._load_error or EngineCrashed(f"the engine process {reason}"))
                return
            pause_s = self._backoff_s()
            logger.error("the engine process %s; starting another in %.1f s", reason, pause_s)
            self._listener.on_down(reason)
            await asyncio.sleep(pause_s)
            self.num_restarts += 1

    async def _run_child(self) -> str:
        """Starts one child and waits until it has ended. Returns the reason of its end."""
        assert self._context is not None
        self._load_error, self.loaded_part = None, None
        self._launched = self._config
        self._is_other_model = False
        try:
            self._child = Child.start(self._command, self._config, self._context, self._times.heartbeat_every_s)
        except OSError as error:
            problem = f"cannot be started: {self._command[0]}: {reason_of(error)}"
            self._load_error = ResourceExhausted(f"the engine process {problem}")
            return self._note_end(problem)
        self._heard_at = asyncio.get_running_loop().time()
        hearing = asyncio.create_task(self._hear(self._child.channel))
        try:
            reason = await self._watch(self._child, hearing)
        finally:
            hearing.cancel()
            await asyncio.wait([hearing])
        await self._hear_last_words(self._child)
        if self._load_error is not None:
            reason = f"could not load the model: {self._load_error.message}"
        reason = self._note_end(reason)
        await self._child.reap()
        self._child = None
        return reason

    async def _watch(self, child: Child, hearing: asyncio.Task[None]) -> str:
        """Waits until the child has exited or must be killed, and returns the reason."""
        clock = asyncio.get_running_loop().time
        every_s = min(_WATCH_EVERY_S, self._times.heartbeat_timeout_s / 4, self._times.load_timeout_s / 4)
        while True:
            asked_at = clock()
            await asyncio.wait([child.exited, hearing], timeout=every_s, return_when=asyncio.FIRST_COMPLETED)
            if child.exited.done():
                return describe_exit(child.exited.result())
            if self._is_outdated:
                return "was loaded with other adapters than it is to have"
            if self._is_other_model:
                return (
                    f"found another model in {self._config.model_path}: the file was changed after it was loaded; "
                    "load the model again, or restore the old file"
                )
            if hearing.done():
                return f"cannot be understood: {hearing.exception()!r}"
            if clock() - asked_at > 2 * every_s:
                self._heard_at = clock()  # this process was suspended: the child's frames are still unread
                self._naps.append((asked_at, clock()))
            elif reason := self._hang_reason(child):
                return reason

    def _hang_reason(self, child: Child) -> str | None:
        silent_s = asyncio.get_running_loop().time() - self._heard_at
        if self._ready_at is None:
            limit_s = self._times.load_timeout_s
            return f"did not load the model within {limit_s:g} s" if silent_s > limit_s else None
        if silent_s > self._times.heartbeat_timeout_s:
            return f"{child.pid} said nothing for {silent_s:.0f} s"
        if self._stalled_s() > self._times.stall_kill_s:
            return f"{child.pid} finished no step for {self._stalled_s():.0f} s"
        return None

    def _late_s(self) -> float:
        """Seconds for which a ready child has finished no step that was due, or sent no frame."""
        if self._ready_at is None:
            return 0.0
        return max(self._stalled_s(), asyncio.get_running_loop().time() - self._heard_at)

    def _stalled_s(self) -> float:
        """Seconds for which work has waited for a step. Times when this process was suspended do not count."""
        if self.heartbeat is None:
            return 0.0
        since = self._heard_at - self.heartbeat.stalled_s
        return self.heartbeat.stalled_s - sum(max(0.0, end - max(begin, since)) for begin, end in self._naps)

    async def _hear(self, channel: Channel) -> None:
        await channel.connected()
        while not (self._is_outdated or self._is_other_model):
            self._take(await channel.receive())

    async def _hear_last_words(self, child: Child) -> None:
        if child.exited.done():
            is_awaited = child.exited.result() == EXIT_LOAD_FAILED and self._load_error is None
            self._take(await child.channel.receive_rest(_LOAD_ERROR_S if is_awaited else _LAST_WORDS_S))

    def _take(self, frame: Frame) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        for event in frame:
            match event:
                case Output():  # first, because nearly all events are outputs
                    self._listener.on_event(event)
                case Ready():
                    self._is_outdated = _adapters_of(self._launched) != _adapters_of(self._config)
                    if not self._is_outdated:
                        self._note_ready(event.card)
                case Loading():
                    self.loaded_part = event.part
                case LoadFailed():
                    self._load_error = event.error()
                case EngineStats():
                    self.heartbeat = event
                case _:
                    self._listener.on_event(event)

    def _note_ready(self, card: ModelCard) -> None:
        assert self._first is not None
        self._is_other_model = self._first.done() and not is_same_model(card, self._first.result())
        if self._is_other_model:
            return
        self._state, self._ready_at = State.READY, self._heard_at
        self._config = same_sizes(self._config, card)
        self._listener.on_ready(card)
        if not self._first.done():
            self._first.set_result(card)

    def _note_end(self, reason: str) -> str:
        now = asyncio.get_running_loop().time()
        was_healthy = self._ready_at is not None and now - self._ready_at >= self._times.healthy_s
        self._num_failures = 1 if was_healthy else self._num_failures + 1
        self._state, self._ready_at, self.heartbeat, self.last_error = State.RESTARTING, None, None, reason
        return reason

    def _backoff_s(self) -> float:
        return min(self._times.backoff_min_s * 2 ** min(self._num_failures - 1, 30), self._times.backoff_max_s)


def _adapters_of(config: EngineConfig) -> tuple[list[str], tuple[AdapterSpec, ...]]:
    return config.lora, config.adapters


def same_sizes(config: EngineConfig, card: ModelCard) -> EngineConfig:
    """The configuration for a restarted engine or a replica, with the context and KV sizes of the first engine's card.

    Clients rely on these sizes. Without them, the other engine would size itself by the memory that is free then.
    """
    return msgspec.structs.replace(
        config, ctx_size=card.context_size or None, kv_tokens=card.kv_tokens or None, num_replicas=1
    )
