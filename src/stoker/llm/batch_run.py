"""Runs a batch of prompts for `LLM`: requests wait for places in the engine, and answers are collected as they end."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial

from stoker.errors import StokerError
from stoker.llm.asks import Ask
from stoker.llm.session import Answer, Session

POLL_S = 1.0
"""Maximum duration of one wait, in seconds; after it, the waiting thread checks that the engine is alive."""


class BatchRun:
    """One call of `LLM.generate` or `LLM.chat`. At most as many prompts are in the engine as it has places."""

    def __init__(self, session: Session, places: threading.BoundedSemaphore, num_prompts: int) -> None:
        self.answers: list[Answer] = []
        self._session = session
        self._places = places
        self._num_prompts = num_prompts
        self._num_collected = 0
        self._ended: queue.Queue[int] = queue.Queue(maxsize=max(1, num_prompts))

    def submit(self, ask: Ask) -> None:
        """Waits for a place in the engine, then submits the next prompt."""
        index = len(self.answers)
        take_place(self._session, self._places)
        self.answers.append(Answer(partial(_note_end, self._ended, index, self._places)))
        with self._naming(index):
            self._session.submit(self.answers[index], ask)

    def collect(self, advance: Callable[[], None], *, wait_for_all: bool) -> None:
        """Collects answers that have ended, and raises the error of an answer that failed.

        Args:
            advance: called once per collected answer, for the progress bar.
            wait_for_all: wait for all submitted prompts, instead of collecting only what has ended already.
        """
        while self._num_collected < len(self.answers) and (wait_for_all or not self._ended.empty()):
            try:
                index = self._ended.get(timeout=POLL_S)
            except queue.Empty:
                self._session.check_alive()
                continue
            with self._naming(index):
                self.answers[index].completion()
            self._num_collected += 1
            advance()

    def stop(self) -> None:
        """Aborts all requests that are still running."""
        for answer in self.answers:
            self._session.abort(answer)

    @contextmanager
    def _naming(self, index: int) -> Generator[None]:
        try:
            yield
        except StokerError as error:
            if self._num_prompts > 1:
                error.add_note(f"in prompt {index} of {self._num_prompts}, counted from 0")
            raise


def take_place(session: Session, places: threading.BoundedSemaphore) -> None:
    """Waits for a place in the engine. The caller makes sure that the end of the answer releases it."""
    session.end_forsaken()
    while not places.acquire(timeout=POLL_S):
        session.free_places()


def _note_end(ended: queue.Queue[int], index: int, places: threading.BoundedSemaphore, is_ended: bool) -> None:
    if is_ended:
        places.release()
        ended.put_nowait(index)
