"""One replica, that is, one of several engines of a model, and the work that it has still to do. It decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum

from stoker.engine.cards import ModelCard
from stoker.engine.health import Health
from stoker.engine.protocol import Accepted, Output, Submit
from stoker.engine.stats import EngineStats
from stoker.runtime.base import Runtime
from stoker.runtime.routing import Beginning
from stoker.runtime.standings import Candidate

_USUAL_ANSWER = 256
"""Length assumed for an answer of unknown length, in tokens; also the maximum that is assumed for any answer."""


class Phase(StrEnum):
    """Phase of a replica's life, from its start to its removal."""

    LOADING = "loading"
    SERVING = "serving"
    DRAINING = "draining"
    """The replica gets no new requests, and is removed when its last request has ended."""


class Work:
    """Estimate of the tokens that a replica has still to compute for one request.

    Prompt tokens are those of `Beginning`, which the cached ones are subtracted from. An engine may count several times
    as many in the same text, so its count is not used.

    Args:
        prompt: prompt tokens that are probably not cached.
        answer: expected tokens of the answer.
    """

    __slots__ = ("_answer", "_left", "_prompt")

    def __init__(self, prompt: int, answer: int) -> None:
        self._prompt = prompt
        self._answer = self._left = answer

    @classmethod
    def of(cls, submit: Submit, beginning: Beginning, matched: int) -> Work:
        """The work for a request, `matched` of whose prompt tokens are probably cached."""
        limit = submit.sampling.longest
        answer = _USUAL_ANSWER if limit is None else min(limit, _USUAL_ANSWER)
        return cls(beginning.num_tokens - matched, answer)

    @property
    def num_tokens(self) -> int:
        return self._prompt + self._left

    @property
    def has_begun(self) -> bool:
        """Whether the prompt is computed."""
        return self._prompt == 0

    def note(self, event: Accepted | Output) -> None:
        """Updates the estimate from an event of the request."""
        if isinstance(event, Output) and event.progress is None:
            self._prompt = 0
            self._left = max(1, self._answer - event.usage.completion_tokens)


class Replica:
    """One engine of a model with its number, its phase and its work.

    Args:
        number: from 0; the number of a removed replica is used again.
        runtime: the engine's runtime, not started yet.
        rank: order among equal replicas, see `Candidate`.
    """

    def __init__(self, number: int, runtime: Runtime, rank: float = 0.0) -> None:
        self.number = number
        self.runtime = runtime
        self.num_sent = 0
        self._phase = Phase.LOADING
        self._rank = rank
        self._work: set[Work] = set()
        self._on_change: Callable[[int], None] = lambda _number: None

    def listen(self, on_change: Callable[[int], None]) -> None:
        """Sets the function that is called with the replica's number when what decides a choice may have changed."""
        self._on_change = on_change

    def note_change(self) -> None:
        """Notes that the runtime's health or the work of a request has changed."""
        self._on_change(self.number)

    @property
    def phase(self) -> Phase:
        return self._phase

    @phase.setter
    def phase(self, phase: Phase) -> None:
        self._phase = phase
        self.note_change()

    @property
    def num_open(self) -> int:
        """Number of requests at the replica, running and waiting."""
        return len(self._work)

    @property
    def can_answer(self) -> bool:
        return self.phase is Phase.SERVING and self.runtime.health().is_ready

    @property
    def card(self) -> ModelCard:
        return self.runtime.card

    def health(self) -> Health:
        """The engine's health; if the engine is ready but the replica drains: not ready, with the state `draining`."""
        health = self.runtime.health()
        if self.phase is not Phase.DRAINING or not health.is_ready:
            return health
        return replace(health, is_ready=False, state=self.phase.value)

    def num_waiting(self, beat: EngineStats | None) -> int:
        """Number of requests that wait: as the engine says, at least those beyond its parallel places.

        Args:
            beat: the engine's newest heartbeat, if there is one.
        """
        told = 0 if beat is None else beat.num_waiting
        return max(told, self.num_open - self.card.parallel)

    @property
    def num_free(self) -> int:
        """Number of further requests that the replica would begin at once."""
        found = self.candidate()
        return 0 if found.pressure else found.parallel - found.num_open

    def candidate(self) -> Candidate:
        """The replica as a candidate for a request."""
        card, health = self.card, self.runtime.health()
        beat = health.heartbeat
        return Candidate(
            number=self.number,
            work=sum(work.num_tokens for work in self._work) + health.others_tokens,
            num_open=self.num_open + health.num_others,
            parallel=card.parallel,
            max_open=card.parallel + card.max_queue,
            kv_usage=beat.kv_used / beat.kv_capacity if beat is not None and beat.kv_capacity else 0.0,
            num_sent=self.num_sent,
            rank=self._rank,
        )

    @contextmanager
    def working_on(self, work: Work) -> Generator[None]:
        """Counts `work` as the replica's while the block runs."""
        self._work.add(work)
        self.num_sent += 1
        self.note_change()
        try:
            yield
        finally:
            self._work.discard(work)
            self.note_change()
