"""One engine in this process, and where its events go: from the engine's thread to the readers of answers.

```
caller's thread   Session.submit ---> engine's thread
                  Answer.take()  <--- Answer.push, end      one frame of events a step
```

What is not read of an answer collects here, and nothing is dropped. A stream whose reader is behind is paused in the
engine, and goes on when it is read; others have its place meanwhile. Answers of lists are read when they have ended.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, cast

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
from stoker.text.messages import Json, Message

if TYPE_CHECKING:
    from stoker.models.progress import Progress


_LIMITS = InboxLimits()
"""How far the reader of a stream may lag: as far as a client of the server."""


class Answer:
    """One request's answer: collected on the engine's thread, read as content, reasoning and calls by its taker.

    Args:
        notify: called with "it has ended" after every change, on the thread that made the change.
        is_streamed: it is read while it comes, and pauses while its reader is behind.
    """

    def __init__(self, notify: Callable[[bool], None], *, is_streamed: bool = False) -> None:
        self.request_id = uuid.uuid4().hex
        self._notify = notify
        self._lock = threading.RLock()
        self._fresh: list[Output] = []
        """Not read yet."""
        self._has_pace = is_streamed
        self._num_unread_bytes = 0
        """Of what was not taken, roughly."""
        self.is_paused = False
        """Its reader is behind, and nothing of it is computed."""
        self._token_ids: list[int] = []
        self._logprobs: list[PositionLogprobs] | None = None
        self._last = Output(self.request_id, "", [], Usage(0, 0, 0))
        self._error: StokerError | None = None
        self.is_ended = False
        self._at_end: Callable[[], None] | None = None
        self._reading = threading.Lock()
        """Guards what follows. The engine's thread never waits for it."""
        self._reader = OutputReader(None)
        self._ask: Ask | None = None
        self._parts: list[Part] = []
        self._num_taken = 0

    def begin(self, ask: Ask, set_pace: Callable[[Pause | Resume], None]) -> None:
        """Says what it is the answer to, and what pauses its request, before anything of it comes."""
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
            self._last = output
        if output.finish_reason is None:
            self._notify(False)

    def end(self, error: StokerError | None = None) -> None:
        """Only the first one counts."""
        with self._lock:
            if self.is_ended:
                return
            self._error, self.is_ended = error, True
        self._notify(True)
        if self._at_end is not None:
            self._at_end()

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Has something done, once, when the answer has ended; at once if it has. On whatever thread ends it."""
        with self._lock:
            if not self.is_ended:
                self._at_end = callback
                return
        callback()

    def take(self) -> Sequence[Part] | None:
        """The parts since the last call; None when there will be no more."""
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
        """The answer as far as it has come."""
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
        """Is not paused any more, with or without a reader."""
        with self._lock:
            self._has_pace = False
            self._go_on()

    def _pause_if_behind(self, output: Output) -> None:
        is_behind = self._num_unread_bytes > _LIMITS.pause_bytes
        if is_behind and self._has_pace and not self.is_paused and output.finish_reason is None:
            self.is_paused = True
            self._set_pace(Pause(self.request_id))

    def _go_on(self) -> None:
        """Its reader takes all there is. Its lock is held."""
        self._num_unread_bytes = 0
        if self.is_paused:
            self.is_paused = False
            self._set_pace(Resume(self.request_id))

    def _read(self) -> bool:
        """Reads what has come since the last time; returns whether that is all."""
        with self._lock:
            outputs, self._fresh, is_ended = self._fresh, [], self.is_ended
            self._go_on()
        for output in outputs:
            self._parts += self._reader.parts(output)
        if is_ended:
            self._parts += self._reader.flush()
        return is_ended


class Session:
    """One engine in this process, and where its events go. Safe to use from several threads."""

    def __init__(self, config: EngineConfig, progress: Progress | None) -> None:
        config = with_preset(config)
        engine, self.card = build_engine(config, progress=progress)
        self.max_outstanding = config.parallel + config.max_queue
        self._template = CardTemplate(self.card)
        self._lock = threading.RLock()
        self._answers: dict[str, Answer] = {}
        self._questions: dict[str, Future[Any]] = {}
        self._forsaken: deque[Answer] = deque()
        """Bounded by the answers that are alive."""
        self._is_closed = False
        self._process_id = os.getpid()
        encoder = create_encoder(local_model(config)) if self.card.media else None
        self._media = SessionMedia(encoder, self.card, self._give_rows, self._fail)
        self._worker = EngineWorker(engine, self._publish, max_waiting_tokens=config.max_queue_tokens)

    @property
    def chat_format(self) -> ChatFormat:
        """See `ChatModel`."""
        return self._template.chat_format

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Json]] = (),
        template_kwargs: Mapping[str, object] | None = None,
    ) -> str:
        """See `ChatModel`."""
        return self._template.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            variables=template_kwargs,
        )

    def submit(self, answer: Answer, ask: Ask) -> None:
        """Starts a request. If this raises, the answer has ended too.

        Raises:
            StokerError: it was refused.
            Cancelled: it was aborted, at whatever moment.
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
            )
            self._worker.submit(self._media.placed(submit))
            is_accepted = True
        finally:
            # An abort in the meantime came before the engine knew the request.
            if not is_accepted or request_id not in self._answers:
                self.abort(answer)

    def ask(self, question: Question[A], future: Future[A]) -> None:
        """Asks the engine something.

        Args:
            question: one that costs no forward pass, or an `Embed`; its `question_id` is given here.
            future: for the answer. Cancelling it takes the request back, at whatever moment.

        Raises:
            StokerError: it was refused, and the future is cancelled.
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
            # A cancellation in the meantime came before the engine knew the request.
            self._forget(question_id, future)

    def metrics(self) -> Future[EngineStats]:
        """The numbers of the engine, after the present step.

        Raises:
            ModelNotLoaded: the model was closed, or its engine has failed.
        """
        self._check_process()
        return self._worker.stats()

    def health(self) -> Health:
        """Whether requests are taken."""
        if self._is_closed:
            return Health(is_ready=False, state="closed")
        if (death := self._worker.death) is not None:
            return Health(is_ready=False, state="failed", last_error=death.message)
        return Health(is_ready=True, state="ready")

    def check_alive(self) -> None:
        """Raises what killed the engine, if something did: then no answer would ever end."""
        self._check_process()
        if self._worker.death is not None:
            raise self._worker.death

    def end_forsaken(self) -> None:
        """Ends what nothing refers to any more; while all streams are paused, no step does that."""
        while self._forsaken:
            self.abort(self._forsaken.popleft())

    def free_places(self) -> None:
        """A request has waited for a place in vain: if all that have one are paused, they go on to their ends.

        Their reader may be the very thread that waits.

        Raises:
            StokerError: the engine has died.
        """
        self.check_alive()
        self.end_forsaken()
        with self._lock:
            answers = list(self._answers.values())
        if all(answer.is_paused for answer in answers):
            for answer in answers:
                answer.let_go()

    def abort(self, answer: Answer) -> None:
        """Ends a request wherever it is; nothing happens if it has ended."""
        if self._is_at_home:
            self._worker.abort(answer.request_id)
            answer.end()  # before it is looked for: who submits it at this moment sees the one or the other
            self._end(answer.request_id)

    def forsake(self, answer: Answer) -> None:
        """As `abort`, but within a step and without a lock: a garbage collector may call this from anywhere."""
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
        """False after a fork: no thread came along, and its locks are as it happened to hold them."""
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
