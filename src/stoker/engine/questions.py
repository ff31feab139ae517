"""Sends questions to an engine process and awaits their answers. Most questions cost no forward pass."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from typing import cast

import msgspec

from stoker.engine.protocol import Abort, Command
from stoker.engine.question_messages import A, Answer, Embed, Question, QuickQuestion, Unanswered, as_answer_to
from stoker.errors import EngineCrashed, ModelNotLoaded, Overloaded, StokerError, Timeout

MAX_QUESTIONS = 256
"""Maximum number of questions that wait for an answer; further ones are refused."""
ANSWER_S = 60.0
"""Seconds to wait for an answer, which comes after the current step and prompts that are being tokenized."""
_TIMEOUT_GRACE_S = 2.0
"""Seconds after the deadline of an `Embed` until it ends here, in case the engine does not end it."""


class Questions:
    """The unanswered questions to one engine. Belongs to one event loop.

    Args:
        send: gives a command to the child; raises `ModelNotLoaded` if no child is ready.
        answer_s: seconds that one question may wait; for an `Embed`, its own `timeout_s` counts.
    """

    def __init__(self, send: Callable[[Command], None], answer_s: float = ANSWER_S) -> None:
        self._send = send
        self._answer_s = answer_s
        self._pending: dict[str, asyncio.Future[Answer]] = {}
        self._numbers = itertools.count()

    async def ask(self, question: Question[A]) -> A:
        """Gives the question its id, sends it, and waits for the answer. Cancellation aborts an `Embed`.

        Raises:
            StokerError: the question was refused.
            Overloaded: too many questions are waiting.
            Timeout: no answer came in time.
            EngineCrashed: the child died before it answered.
        """
        if len(self._pending) >= MAX_QUESTIONS:
            raise Overloaded(f"{MAX_QUESTIONS} questions to the model are waiting already", retry_after_s=1.0)
        numbered = msgspec.structs.replace(question, question_id=f"q{next(self._numbers)}")
        command = cast("Embed | QuickQuestion", numbered)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._send(command)
        self._pending[command.question_id] = future
        try:
            answer = await self._wait(future, self._patience_s(command))
        finally:
            self._pending.pop(command.question_id, None)
            if isinstance(command, Embed) and (not future.done() or future.cancelled()):
                with contextlib.suppress(ModelNotLoaded):  # no child is ready, so nothing computes the question
                    self._send(Abort(command.question_id))
        if isinstance(answer, Unanswered):
            raise answer.error()
        return as_answer_to(question, answer)

    def on_answer(self, answer: Answer) -> None:
        """Delivers an answer; one whose question was abandoned is ignored."""
        future = self._pending.get(answer.question_id)
        if future is not None and not future.done():
            future.set_result(answer)

    def on_down(self, reason: str) -> None:
        """Ends all questions with `EngineCrashed`, because the child has ended."""
        self.end_all(EngineCrashed(f"the engine process {reason} before it answered; it is being started again"))

    def end_all(self, error: StokerError) -> None:
        """Ends all questions with `error`."""
        for future in self._pending.values():
            if not future.done():
                future.set_exception(error)

    def _patience_s(self, question: QuickQuestion | Embed) -> float | None:
        if not isinstance(question, Embed):
            return self._answer_s
        return None if question.timeout_s is None else question.timeout_s + _TIMEOUT_GRACE_S

    async def _wait(self, future: asyncio.Future[Answer], patience_s: float | None) -> Answer:
        try:
            async with asyncio.timeout(patience_s):
                return await future
        except TimeoutError as error:
            message = f"the engine did not answer within {patience_s:g} s"
            raise Timeout(message, timeout_s=patience_s) from error
