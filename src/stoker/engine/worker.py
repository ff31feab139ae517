"""The thread that owns an engine: it applies commands between two steps, publishes events, and sleeps when idle.

```
any thread    admit, enqueue, abort ---> [commands] ---> engine thread: apply all, step, publish
```
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias, TypeVar

import msgspec

from stoker.core.blocks import Chain, root_key
from stoker.engine.blocks_held import block_number
from stoker.engine.call import Call
from stoker.engine.closing import closing_on_error
from stoker.engine.door import Door
from stoker.engine.embeddings import EmbeddingJob
from stoker.engine.engine import Engine
from stoker.engine.protocol import Abort, Accepted, Event, Failed, GiveRows, Output, Pause, Resume, Submit
from stoker.engine.question_messages import Embed, Embedded, QuickQuestion, Unanswered
from stoker.engine.stats import EngineStats
from stoker.engine.stream import Stream
from stoker.errors import Cancelled, EngineCrashed, InvalidInput, ModelNotLoaded, StokerError

logger = logging.getLogger(__name__)

Work: TypeAlias = Stream | EmbeddingJob
"""An admitted request: for generated text, or for embeddings."""

T = TypeVar("T")


_Command: TypeAlias = Work | Abort | Pause | Resume | QuickQuestion | Call[Any]

AdmittedT = TypeVar("AdmittedT", bound=Work)

_IDLE_WAIT_S = 60.0
"""Longest sleep without work, in seconds; waking up without a reason is harmless."""

_TIER_WAIT_S = 0.05
"""Longest sleep while a request waits for the disk, in seconds, so that deadlines are checked."""

_BEAT_EVERY_S = 0.25
"""Maximum age of a heartbeat's numbers during steps, in seconds: counting cells in every step is too slow."""


class EngineWorker:
    """Runs an engine until it is closed or dies. Safe to use from several threads.

    The worker owns the engine: its thread closes it. If a step raises, every live request ends with
    `EngineCrashed`, and the worker refuses all further requests and questions.

    Args:
        engine: freshly built.
        publish: called on the engine's thread with the events of each step, even with an empty list; it must neither
            block for long nor raise.
        max_waiting_tokens: maximum sum of prompt tokens of requests that have not begun; a single prompt may exceed it.
        clock: seconds; only differences count.
    """

    def __init__(
        self,
        engine: Engine,
        publish: Callable[[list[Event]], None],
        *,
        max_waiting_tokens: int = 2**31 - 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._publish = publish
        self._clock = clock
        self._door = Door(capacity=engine.capacity, parallel=engine.parallel, clock=clock)
        self._changed = threading.Condition()
        """Guards the fields below; notified when the engine's thread has something to do."""
        self._commands: deque[_Command] = deque()
        """Commands for the next step. `Door` bounds requests: at most one `Work` and one `Abort` each. The caller
        bounds questions. Pauses are rare: a reader must take the outputs of several steps between two of them."""
        self._taken: deque[_Command] = deque()
        """Commands that the engine's thread applies before the next step. Only that thread uses them."""
        self._live: dict[str, Work | None] = {}
        """Work by request id; None while the prompt is still being tokenized."""
        self._unqueued: dict[str, Stream] = {}
        """Streams between `admit` and `enqueue`."""
        self._max_waiting_tokens = max_waiting_tokens
        self._left: set[str] = set()
        """Ids of requests aborted while they were tokenized: each keeps its place until its tokenization has ended."""
        self._waits_since: float | None = None
        """Time since which the next step is due; None = there is no work, or events are being published."""
        self._beat, self._beat_at = engine.stats(), clock()
        self._is_closing = False
        self._has_arrival = False
        """A tier has delivered KV that the engine was waiting for."""
        engine.on_arrival(self._note_arrival)
        self._death: StokerError | None = None
        self._thread = threading.Thread(target=self._run, name="stoker-engine", daemon=True)
        self._thread.start()

    @property
    def death(self) -> StokerError | None:
        """The error that ended the engine; None = it can be used."""
        return self._death

    def submit(self, submit: Submit) -> Accepted:
        """Starts a request; tokenizes on the caller's thread.

        Raises:
            StokerError: the request was refused; no event is published for it.
        """
        self.reserve(submit.request_id)
        stream = self.admit(submit)
        self.enqueue(stream)
        return accepted(submit, stream)

    def embed(self, embed: Embed) -> None:
        """Starts a request for embeddings; tokenizes on the caller's thread.

        Raises:
            StokerError: the request was refused; no event is published for it.
        """
        self.reserve(embed.question_id)
        self.enqueue(self.admit_embedding(embed))

    def reserve(self, request_id: str) -> None:
        """Reserves a place for a request without waiting; the first of the three steps of `submit`.

        Raises:
            Overloaded: `parallel + max_queue` requests are alive.
            InvalidInput: another request with this id is alive.
            ModelNotLoaded: the worker is closed or dead.
        """
        with self._changed:
            self._check_open()
            if request_id in self._live:
                raise InvalidInput(f"request id {request_id!r} is already in use", parameter="request_id")
            self._door.check(len(self._live))
            self._live[request_id] = None

    def admit(self, submit: Submit) -> Stream:
        """Tokenizes and checks a request; the second step of `submit`. An error frees its place. See `Engine.admit`.

        Raises:
            Overloaded: the prompts of waiting requests have too many tokens.
        """
        return self._admitted(submit.request_id, partial(self._admit, submit))

    def admit_embedding(self, embed: Embed) -> EmbeddingJob:
        """Tokenizes and checks a request for embeddings; an error frees its place. See `Engine.admit_embedding`."""
        return self._admitted(embed.question_id, partial(self._engine.admit_embedding, embed))

    def enqueue(self, stream: Work) -> None:
        """Queues an admitted request for the engine; the third step of `submit`. From now on events are published.

        Raises:
            Cancelled: the request was aborted since `reserve`.
            ModelNotLoaded: the worker was closed or has died since `reserve`.
        """
        with self._changed:
            if isinstance(stream, Stream) and self._unqueued.get(stream.request_id) is not stream:
                raise Cancelled("the request was aborted before it was queued")
            self._unqueued.pop(stream.request_id, None)
            self._check_open()
            if stream.request_id in self._left:
                self._left.discard(stream.request_id)
                del self._live[stream.request_id]
                raise Cancelled("the request was aborted before it was queued")
            self._live[stream.request_id] = stream
            self._push(stream)

    def abort(self, request_id: str) -> None:
        """Ends a request within one step. Unknown ids are ignored."""
        with self._changed:
            if self._live.get(request_id) is not None:
                del self._live[request_id]
                self._door.note_departure(self._clock())
                self._push(Abort(request_id))
            elif request_id in self._unqueued:
                del self._unqueued[request_id], self._live[request_id]
                self._left.discard(request_id)
            elif request_id in self._live:
                self._left.add(request_id)

    def set_pace(self, command: Pause | Resume) -> None:
        """Pauses or resumes a request between two steps. Unknown ids are ignored."""
        with self._changed:
            if self._live.get(command.request_id) is not None:
                self._push(command)

    def give_rows(self, rows: GiveRows) -> None:
        """Gives the engine image rows that a `RowsWanted` event requested. Does nothing if the engine has ended."""
        with suppress(ModelNotLoaded):
            self.perform(partial(self._engine.rows.take, rows.key, rows.values))

    def ask(self, question: QuickQuestion) -> None:
        """Queues a question, which the engine answers between two steps; the answer is published as an event.

        Raises:
            ModelNotLoaded: the worker is closed or dead.
        """
        with self._changed:
            self._check_open()
            self._push(question)

    def perform(self, work: Callable[[], T]) -> Future[T]:
        """Runs `work` on the engine's thread between two steps; `work` must neither wait nor take long.

        Raises:
            ModelNotLoaded: the worker is closed or dead.
        """
        call = Call(work, Future[T]())
        with self._changed:
            self._check_open()
            self._push(call)
        return call.future

    def stats(self) -> Future[EngineStats]:
        """The engine's statistics, taken between two steps.

        Raises:
            ModelNotLoaded: the worker is closed or dead.
        """
        return self.perform(self._engine.stats)

    def heartbeat(self) -> EngineStats:
        """The engine's latest statistics and how long a step has been due. Does not wait for the current step."""
        with self._changed:
            stalled_s = 0.0 if self._waits_since is None else self._clock() - self._waits_since
            num_waiting = self._beat.num_waiting + sum(isinstance(command, Work) for command in self._commands)
            return msgspec.structs.replace(self._beat, num_waiting=num_waiting, stalled_s=stalled_s)

    def close(self, timeout_s: float = 10.0) -> bool:
        """Ends every request with `ModelNotLoaded` and frees the model. Calling it twice is allowed.

        Returns:
            False if the thread is still stuck in a step after `timeout_s`; the thread then keeps running.
        """
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)
        if self._thread.is_alive():
            logger.error("the engine thread did not end within %g s", timeout_s)
        return not self._thread.is_alive()

    def _admit(self, submit: Submit) -> Stream:
        stream = self._engine.admit(submit)
        with self._changed:
            streams = [*self._unqueued.values(), *self._live.values(), stream]
            waiting = [work for work in streams if isinstance(work, Stream) and not work.has_begun]
            # Requests of one group share a prompt, which is computed once.
            prompts = {work.request.group or work.request_id: len(work.request.prompt) for work in waiting}
            if len(prompts) > 1:
                self._door.check_tokens(sum(prompts.values()), self._max_waiting_tokens)
            self._unqueued[stream.request_id] = stream
        return stream

    def _admitted(self, request_id: str, admit: Callable[[], AdmittedT]) -> AdmittedT:
        with closing_on_error(partial(self._give_up, request_id)):
            return admit()

    def _give_up(self, request_id: str) -> None:
        with self._changed:
            self._live.pop(request_id, None)
            self._left.discard(request_id)

    def _check_open(self) -> None:
        if self._death is not None:
            raise ModelNotLoaded(f"the engine has stopped: {self._death.message}")
        if self._is_closing:
            raise ModelNotLoaded("the engine was closed")

    def _push(self, command: _Command) -> None:
        self._commands.append(command)
        if self._waits_since is None:
            self._waits_since = self._clock()
        self._changed.notify_all()

    def _run(self) -> None:
        """The body of the engine's thread. It catches every exception and reports it to every live request."""
        try:
            self._loop()
            self._end_all(ModelNotLoaded("the engine was closed"))
        except Exception as error:
            logger.exception("the engine died")
            self._end_all(EngineCrashed(f"the engine failed: {type(error).__name__}: {error}"))
        finally:
            self._engine.close()

    def _loop(self) -> None:
        while self._take_commands():
            replies = self._apply_taken()
            self._hand_over([*replies, *self._engine.step()])

    def _take_commands(self) -> bool:
        """Sleeps until there is a command or work, and takes the commands. False = the worker is being closed."""
        with self._changed:
            while not (self._commands or self._engine.has_work or self._is_closing):
                # A paused request may exceed its deadline meanwhile.
                self._changed.wait(min(_IDLE_WAIT_S, max(0.0, self._engine.next_deadline - self._clock())))
            if self._engine.is_waiting and not (self._commands or self._is_closing or self._has_arrival):
                self._changed.wait(_TIER_WAIT_S)
            self._has_arrival = False
            if self._is_closing:
                return False
            self._taken.extend(self._commands)
            self._commands.clear()
            return True

    def _apply_taken(self) -> list[Event]:
        """Applies the taken commands and drops each at once: a call may hold gigabytes."""
        replies: list[Event] = []
        while self._taken:
            if (event := self._apply(self._taken[0])) is not None:
                replies.append(event)
            self._taken.popleft()
        return replies

    def _note_arrival(self) -> None:
        with self._changed:
            self._has_arrival = True
            self._changed.notify_all()

    def _apply(self, command: _Command) -> Event | None:
        match command:
            case Abort():
                self._engine.abort(command.request_id)
                return None
            case Pause():
                self._engine.pause(command.request_id)
                return None
            case Resume():
                self._engine.resume(command.request_id)
                return None
            case Stream() | EmbeddingJob():
                return self._add(command)
            case Call():
                command.run()
                return None
            case _:
                return self._answer(command)

    def _add(self, work: Work) -> Event | None:
        try:
            self._engine.add(work) if isinstance(work, Stream) else self._engine.add_embedding(work)
        except StokerError as error:
            return _failure(work, error)
        return None

    def _answer(self, question: QuickQuestion) -> Event:
        try:
            return self._engine.answer(question)
        except StokerError as error:
            return Unanswered.of(question.question_id, error)

    def _hand_over(self, events: list[Event]) -> None:
        """Publishes events of requests that are alive. Time spent in `publish` does not count as a stall."""
        with self._changed:
            self._waits_since = None
            wanted = [event for event in events if self._is_wanted(event)]
            for event in wanted:
                if (request_id := _ended_by(event)) in self._live:
                    del self._live[request_id]
                    self._door.note_departure(self._clock())
        self._publish(wanted)
        with self._changed:
            now = self._clock()
            if self._engine.has_work or self._commands:
                self._waits_since = now
            if not self._engine.has_work or now - self._beat_at >= _BEAT_EVERY_S:
                self._beat, self._beat_at = self._engine.stats(), now

    def _is_wanted(self, event: Event) -> bool:
        if not isinstance(event, (Output, Failed)):
            return True  # an answer
        stream = self._live.get(event.request_id)
        return stream is not None and stream not in self._commands  # else: of an aborted request with the same id

    def _end_all(self, error: StokerError) -> None:
        with self._changed:
            self._death = self._death or error
            self._waits_since = None
            live, self._live = self._live, {}
            self._left.clear()
            calls = [command for command in (*self._taken, *self._commands) if isinstance(command, Call)]
            self._taken.clear()
            self._commands.clear()
        for call in calls:
            call.end(error)
        try:
            self._publish([_failure(work, error) for work in live.values() if work is not None])
        except Exception:
            logger.exception("the end of the engine cannot be reported")


def accepted(submit: Submit, stream: Stream) -> Accepted:
    """The event that tells a client that its request is admitted."""
    request, blocks = stream.request, Chain(root_key(stream.request.adapters))
    if submit.wants_blocks and request.cache_prompt:
        blocks.extend(request.prompt)
    return Accepted(submit.request_id, len(request.prompt), stream.relaxed, [block_number(key) for key in blocks.keys])


def _failure(work: Work, error: StokerError) -> Event:
    of = Failed.of if isinstance(work, Stream) else Unanswered.of
    return of(work.request_id, error)


def _ended_by(event: Event) -> str:
    """The id of the request that an event ends; empty = the event ends none."""
    match event:
        case Output():
            return "" if event.finish_reason is None else event.request_id
        case Failed():
            return event.request_id
        case Embedded() | Unanswered():
            return event.question_id
        case _:
            return ""
