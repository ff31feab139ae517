"""Runs one engine in this process and routes its events from the engine's thread to the readers of the answers.

```
caller's thread   Session.submit ---> engine's thread
                  Answer.take()  <--- Answer.push, end      one frame of events a step
```

Unread output is buffered here, and no output is dropped. The engine pauses a stream whose reader is slow until the
reader catches up; other requests use its slot meanwhile. The answers to a list of prompts are read after they end.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Unpack, cast

import msgspec

from stoker.assembly import build_engine
from stoker.chat.answers import OutputReader, Part
from stoker.engine.card_template import CardTemplate
from stoker.engine.closing import closing_on_error
from stoker.engine.config import EngineConfig
from stoker.engine.health import Health
from stoker.engine.inbox import InboxLimits, size_of
from stoker.engine.protocol import (
    Event,
    Failed,
    GiveRows,
    Output,
    Pause,
    PositionLogprobs,
    Resume,
    RowsWanted,
    Submit,
    Usage,
)
from stoker.engine.question_messages import A, Embed, Question, QuickQuestion, Unanswered
from stoker.engine.question_messages import Answer as Answered
from stoker.engine.stats import EngineStats
from stoker.engine.worker import EngineWorker
from stoker.errors import Cancelled, ModelNotLoaded, StokerError
from stoker.llm.asks import Ask
from stoker.llm.completion import Completion, completion_of
from stoker.llm.files import SessionMedia
from stoker.loading.encoders import create_encoder
from stoker.loading.locating import local_model, with_preset
from stoker.text.chat_formats.probe import ChatFormat
from stoker.text.messages import Message, RenderOptions

if TYPE_CHECKING:
    from stoker.models.progress import Progress


_LIMITS = InboxLimits()
"""How far the reader of a stream may lag before its request is paused: the limits of the server's clients."""


class Answer:
    """The answer to one request. The engine's thread pushes outputs; the caller's thread reads them as parts.

    Args:
        notify: called after every change, on the thread that made the change; its argument is whether the answer ended.
        is_streamed: the answer is read during generation, and its request is paused while the reader is too slow.
    """

    def __init__(self, notify: Callable[[bool], None], *, is_streamed: bool = False) -> None:
        self.request_id = uuid.uuid4().hex
        self.is_streamed = is_streamed
        self.prompt_progress: tuple[int, int] | None = None
        """See `TextStream.prompt_progress`."""
        self._notify = notify
        self._lock = threading.RLock()
        self._fresh: list[Output] = []
        """Outputs that were not parsed into parts yet."""
        self._has_pace = is_streamed
        self._num_unread_bytes = 0
        """Approximate size of the outputs that were pushed since the last read."""
        self.is_paused = False
        """The reader is too slow, so the engine computes no further tokens of this request."""
        self._token_ids: list[int] = []
        self._logprobs: list[PositionLogprobs] | None = None
        self._last = Output(self.request_id, "", [], Usage(0, 0, 0))
        self._error: StokerError | None = None
        self.is_ended = False
        self._at_end: Callable[[], None] | None = None
        self._reading = threading.Lock()
        """Guards the attributes below. The engine's thread never takes this lock, so a slow reader cannot block it."""
        self._reader = OutputReader(None)
        self._ask: Ask | None = None
        self._parts: list[Part] = []
        self._num_taken = 0

    def begin(self, ask: Ask, set_pace: Callable[[Pause | Resume], None]) -> None:
        """Sets the request of this answer, and the function that pauses or resumes it. Called before any `push`."""
        self._ask, self._reader, self._set_pace = ask, OutputReader(ask.reader), set_pace

    def push(self, output: Output) -> None:
        with self._lock:
            self._fresh.append(output)
            self._num_unread_bytes += size_of(output)
            self._pause_if_behind(output)
            self._token_ids += output.token_ids
            if output.logprobs is not None:
                self._logprobs = self._logprobs or []
                self._logprobs += output.logprobs
            if output.progress is not None:
                self.prompt_progress = output.progress.num_computed, output.progress.num_prompt
            self._last = output
        if output.finish_reason is None:
            self._notify(False)

    def end(self, error: StokerError | None = None) -> None:
        """Marks the answer as ended, with an error if the request failed. Only the first call has an effect."""
        with self._lock:
            if self.is_ended:
                return
            self._error, self.is_ended = error, True
        self._notify(True)
        if self._at_end is not None:
            self._at_end()

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once when the answer ends, on the thread that ends it; at once if it has ended already."""
        with self._lock:
            if not self.is_ended:
                self._at_end = callback
                return
        callback()

    def take(self) -> Sequence[Part] | None:
        """The parts since the last call, possibly none; None = the answer has ended and all its parts were taken.

        Raises:
            StokerError: the request failed; its parts were taken before.
        """
        with self._reading:
            is_ended = self._read()
            fresh = self._parts[self._num_taken :]
            self._num_taken = len(self._parts)
        if fresh or not is_ended:
            return fresh
        if self._error is not None:
            raise self._error
        return None

    def completion(self) -> Completion:
        """The answer so far, including parts that were not taken."""
        if self._error is not None:
            raise self._error
        with self._reading:
            self._read()
            parts, ask = list(self._parts), self._ask
        with self._lock:
            return completion_of(
                self.request_id,
                parts,
                self._last,
                token_ids=self._token_ids,
                logprobs=self._logprobs,
                parse=None if ask is None else ask.parse,
                functions={} if ask is None else ask.functions,
            )

    def let_go(self) -> None:
        """Resumes the request, and never pauses it again, even if its output is not read."""
        with self._lock:
            self._has_pace = False
            self._go_on()

    def _pause_if_behind(self, output: Output) -> None:
        is_behind = self._num_unread_bytes > _LIMITS.pause_bytes
        if is_behind and self._has_pace and not self.is_paused and output.finish_reason is None:
            self.is_paused = True
            self._set_pace(Pause(self.request_id))

    def _go_on(self) -> None:
        """Resumes the request, since the reader takes all unread output. The caller holds `_lock`."""
        self._num_unread_bytes = 0
        if self.is_paused:
            self.is_paused = False
            self._set_pace(Resume(self.request_id))

    def _read(self) -> bool:
        """Parses the outputs since the last call into parts; returns whether the answer has ended."""
        with self._lock:
            outputs, self._fresh, is_ended = self._fresh, [], self.is_ended
            self._go_on()
        for output in outputs:
            self._parts += self._reader.parts(output)
        if is_ended:
            self._parts += self._reader.flush()
        return is_ended


class Session:
    """One engine in this process, with its worker thread and its unfinished answers. Safe to use from any thread."""

    def __init__(self, config: EngineConfig, progress: Progress | None) -> None:
        config = with_preset(config)
        engine, self.card = build_engine(config, progress=progress)
        self.max_outstanding = config.parallel + config.max_queue
        self._template = CardTemplate(self.card)
        self._lock = threading.RLock()
        self._answers: dict[str, Answer] = {}
        self._questions: dict[str, Future[Any]] = {}
        self._forsaken: deque[Answer] = deque()
        """Answers whose stream was garbage-collected before its end; the next step aborts their requests."""
        self._is_closed = False
        self._process_id = os.getpid()
        encoder = create_encoder(local_model(config)) if self.card.media else None
        self._media = SessionMedia(encoder, self.card, self._give_rows, self._fail)
        self._worker = EngineWorker(engine, self._publish, max_waiting_tokens=config.max_queue_tokens)

    @property
    def chat_format(self) -> ChatFormat:
        """See `ChatModel`."""
        return self._template.chat_format

    def render_chat(self, messages: Sequence[Message], **options: Unpack[RenderOptions]) -> str:
        """See `ChatModel`."""
        return self._template.render(messages, **options)

    def submit(self, answer: Answer, ask: Ask) -> None:
        """Starts a request. If this raises, the answer has ended too.

        Raises:
            StokerError: the request was refused.
            Cancelled: the request was aborted before the engine had queued it.
        """
        self._check_process()
        request_id = answer.request_id
        answer.begin(ask, self._set_pace)
        is_accepted = False
        with self._lock:
            self._answers[request_id] = answer
        try:
            if answer.is_ended:
                raise Cancelled("the request was aborted before it was submitted")
            if self._is_closed:
                raise ModelNotLoaded("the model was closed")
            submit = Submit(
                request_id,
                ask.prompt,
                ask.sampling,
                adapters=ask.adapters,
                outline=ask.outline,
                media=ask.media,
                timeout_s=ask.timeout_s,
                reports_progress=answer.is_streamed,
            )
            self._worker.submit(self._media.placed(submit))
            is_accepted = True
        finally:
            # If `abort` ran during the submission, the engine did not know the request yet and must be told again.
            if not is_accepted or request_id not in self._answers:
                self.abort(answer)

    def ask(self, question: Question[A], future: Future[A]) -> None:
        """Sends a question to the engine.

        Args:
            question: a question that needs no forward pass, or an `Embed`; its `question_id` is set here.
            future: receives the answer. Canceling it withdraws the question, at any time before or after the call.

        Raises:
            StokerError: the question was refused; the future is canceled.
        """
        self._check_process()
        question_id = uuid.uuid4().hex
        with self._lock:
            self._questions[question_id] = future
        future.add_done_callback(lambda future: self._forget(question_id, future))
        try:
            with closing_on_error(future.cancel):
                if future.cancelled():
                    raise Cancelled("the request was canceled before it was submitted")
                if self._is_closed:
                    raise ModelNotLoaded("the model was closed")
                asked = msgspec.structs.replace(question, question_id=question_id)
                if isinstance(asked, Embed):
                    self._worker.embed(asked)
                else:
                    self._worker.ask(cast("QuickQuestion", asked))
        finally:
            # If the future was canceled during the submission, the engine did not know the question yet.
            self._forget(question_id, future)

    def metrics(self) -> Future[EngineStats]:
        """The statistics of the engine, taken after the current step.

        Raises:
            ModelNotLoaded: the model was closed, or its engine has failed.
        """
        self._check_process()
        return self._worker.stats()

    def health(self) -> Health:
        """Whether the engine accepts requests: `ready`, `closed` or `failed`, with the error that stopped it."""
        if self._is_closed:
            return Health(is_ready=False, state="closed")
        if (death := self._worker.death) is not None:
            return Health(is_ready=False, state="failed", last_error=death.message)
        return Health(is_ready=True, state="ready")

    def check_alive(self) -> None:
        """Raises the error that stopped the engine, if it has failed: no answer would ever end after that."""
        self._check_process()
        if self._worker.death is not None:
            raise self._worker.death

    def end_forsaken(self) -> None:
        """Aborts requests whose streams were garbage-collected.

        Every engine step does this, too; but while all streams are paused, there are no steps.
        """
        while self._forsaken:
            self.abort(self._forsaken.popleft())

    def free_places(self) -> None:
        """Prevents a deadlock while a request waits for a place: if all running requests are paused, resumes them.

        The thread that waits may be the one that should read the paused streams. They are not paused again.

        Raises:
            StokerError: the engine has failed.
        """
        self.check_alive()
        self.end_forsaken()
        with self._lock:
            answers = list(self._answers.values())
        if all(answer.is_paused for answer in answers):
            for answer in answers:
                answer.let_go()

    def abort(self, answer: Answer) -> None:
        """Ends a request in any state: waiting, running or not yet submitted. A request that has ended is unchanged."""
        if self._is_at_home:
            self._worker.abort(answer.request_id)
            answer.end()  # before `_end`: a concurrent `submit` sees that it has ended, or that it was removed
            self._end(answer.request_id)

    def forsake(self, answer: Answer) -> None:
        """Aborts the request in the next engine step. Takes no lock, so the garbage collector may run it anywhere."""
        self._forsaken.append(answer)

    def close(self) -> None:
        """Ends all requests and frees the model. Calling it twice is allowed."""
        if not self._is_at_home:
            return
        self._is_closed = True
        self._media.close()
        self._worker.close()
        for request_id in list(self._answers):
            self._end(request_id, ModelNotLoaded("the model was closed"))
        for question_id in list(self._questions):
            self._settle(question_id, ModelNotLoaded("the model was closed"))

    @property
    def _is_at_home(self) -> bool:
        """False in a forked child process: it has no engine thread, and its copies of locks may be held forever."""
        return os.getpid() == self._process_id

    def _check_process(self) -> None:
        if not self._is_at_home:
            raise ModelNotLoaded("the model belongs to the process that loaded it; load it again in this one")

    def _publish(self, events: list[Event]) -> None:
        self.end_forsaken()
        for event in events:
            if isinstance(event, Output) and (answer := self._answers.get(event.request_id)):
                answer.push(event)
                if event.finish_reason is not None:
                    self._end(event.request_id)
            elif isinstance(event, Failed):
                self._end(event.request_id, event.error())
            elif isinstance(event, RowsWanted):
                self._media.on_wanted(event)
            elif isinstance(event, Unanswered):
                self._settle(event.question_id, event.error())
            elif isinstance(event, Answered):
                self._settle(event.question_id, event)

    def _settle(self, question_id: str, result: Answered | StokerError) -> None:
        with self._lock:
            future = self._questions.pop(question_id, None)
        if future is None or not future.set_running_or_notify_cancel():
            return
        if isinstance(result, Answered):
            future.set_result(result)
        else:
            future.set_exception(result)

    def _forget(self, question_id: str, future: Future[Any]) -> None:
        if future.cancelled() and self._is_at_home:
            with self._lock:
                self._questions.pop(question_id, None)
            self._worker.abort(question_id)

    def _end(self, request_id: str, error: StokerError | None = None) -> None:
        with self._lock:
            answer = self._answers.pop(request_id, None)
        if answer is not None:
            self._media.forget(request_id)
            answer.end(error)

    def _set_pace(self, command: Pause | Resume) -> None:
        if self._is_at_home:
            self._worker.set_pace(command)

    def _give_rows(self, rows: GiveRows) -> None:
        self._worker.give_rows(rows)

    def _fail(self, request_id: str, error: StokerError) -> None:
        self._worker.abort(request_id)
        self._end(request_id, error)
