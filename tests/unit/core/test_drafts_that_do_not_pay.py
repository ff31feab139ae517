"""Files and heads that draft: never much slower than without them, and off where many sequences run; by given times."""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass

import pytest

from stoker.core.draft_port import Drafted
from stoker.core.model_drafts import ModelDrafts
from stoker.core.sequence import Sequence
from stoker.core.speculation import Speculation
from tests.harness import make_request

PASSES = {"assistant": 0.03, "draft head": 0.06, "EAGLE-3": 0.1, "small model": 0.2}
"""Of what drafts, as parts of a step of the model with one row."""
StepTime = Callable[[int], float]
"""Seconds by rows."""
STEPS: dict[str, StepTime] = {
    "rows are cheap": lambda rows: 1 + 0.01 * (rows - 1),
    "rows cost something": lambda rows: 1 + 0.04 * (rows - 1),
    "a few rows are free": lambda rows: max(1.0, rows / 4),
}
ANSWER = 64
PROMPT = 4


@dataclass
class Port:
    """Drafts for any sequence, each pass in the same time. Satisfies `DraftPort`."""

    pass_s: float

    def num_missing(self, sequence: Sequence) -> int:
        return 0

    def catch_up(self, sequence: Sequence, most: int) -> Drafted:
        raise AssertionError("nothing is missing")

    def draft(self, wanted: Ordered[tuple[Sequence, int]]) -> Drafted:
        most = max(count for _, count in wanted)
        return Drafted([[-1] * count for _, count in wanted], most, 0, most * self.pass_s)

    def warm_up(self) -> None: ...

    def close(self) -> None: ...


class Bench:
    """An engine's steps with drafts that come out with a set chance, in texts that repeat nothing."""

    def __init__(self, pass_s: float, step_s: StepTime, acceptance: float = 0.0) -> None:
        self.speculation = Speculation(15, 512, ModelDrafts(Port(pass_s)))
        self._step_s = step_s
        self._random = random.Random(1)
        self._acceptance = acceptance
        self._num_entries = 0
        self.num_steps = 0

    def speed_up(self, num_streams: int) -> float:
        """Answers as many requests at once; returns by how much sooner they end than without drafts."""
        running = [self._request(index) for index in range(num_streams)]
        seconds, self.num_steps = 0.0, 0
        while running:
            seconds += self._step(running)
            self.num_steps += 1
            running = [sequence for sequence in running if len(sequence.entries) < PROMPT + ANSWER]
        return ANSWER * self._step_s(num_streams) / seconds

    def _request(self, index: int) -> Sequence:
        sequence = Sequence(make_request(f"{index}", self._fresh(PROMPT)), max_entries=PROMPT + ANSWER)
        sequence.num_computed = PROMPT - 1
        return sequence

    def _fresh(self, count: int) -> list[int]:
        self._num_entries += count
        return list(range(self._num_entries - count, self._num_entries))

    def _step(self, running: list[Sequence]) -> float:
        assert self.speculation.models is not None
        before_s = self.speculation.models.seconds
        drafts = self.speculation.drafts(running, 10_000) if self.speculation.begin_step() else None
        sizes = [len(draft) for draft in drafts or [[]] * len(running)]
        step_s = self._step_s(len(running) + sum(sizes))
        for sequence, size in zip(running, sizes, strict=True):
            num_accepted = 0
            while num_accepted < size and self._random.random() < self._acceptance:
                num_accepted += 1
            sequence.entries += self._fresh(num_accepted + 1)
            self.speculation.observe(sequence, size, num_accepted)
        self.speculation.observe_step(len(running), sum(sizes), step_s)
        return step_s + self.speculation.models.seconds - before_s


@pytest.mark.parametrize("num_streams", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("drafter", PASSES)
def test_what_never_comes_out_costs_little_from_the_first_answer_on(drafter: str, step: str, num_streams: int) -> None:
    bench = Bench(PASSES[drafter], STEPS[step])
    assert bench.speed_up(num_streams) > 0.98
    assert bench.speed_up(num_streams) > 0.98
    assert bench.speed_up(num_streams) > 0.98


@pytest.mark.parametrize("drafter", PASSES)
def test_what_one_request_has_shown_the_next_ones_know(drafter: str) -> None:
    bench = Bench(PASSES[drafter], STEPS["rows cost something"])
    bench.speed_up(1)
    first = bench.speculation.num_drafted
    bench.speed_up(1)
    assert 0 < bench.speculation.num_drafted - first < 0.6 * first


@pytest.mark.parametrize("drafter", PASSES)
def test_the_more_sequences_run_the_less_is_drafted(drafter: str) -> None:
    """A step of four rows takes as long as one of one, so 8 sequences have nothing to gain."""
    drafted: list[float] = []
    for num_streams in (1, 2, 4, 8, 16):
        bench = Bench(PASSES[drafter], STEPS["a few rows are free"], acceptance=0.8)
        for _ in range(4):
            bench.speed_up(num_streams)
        before = bench.speculation.num_drafted
        assert bench.speed_up(num_streams) > (1.3 if num_streams == 1 else 0.98)
        drafted.append((bench.speculation.num_drafted - before) / bench.num_steps / num_streams)
    assert drafted[0] > drafted[1] > drafted[2]
    assert drafted[0] > 1
    assert drafted[3:] == [0, 0]


def test_what_one_request_has_shown_those_know_that_run_beside_it() -> None:
    """Two requests run, too dear to be drafted for together; then the first one goes on alone for a while."""
    speculation = Speculation(15, 512, ModelDrafts(Port(0.1)))
    first, second = (
        Sequence(make_request(name, list(range(start, start + PROMPT))), max_entries=10**6)
        for name, start in (("first", 0), ("second", 100))
    )
    for num_drafted in range(8):
        speculation.observe_step(1, num_drafted, 1.0 + 0.02 * num_drafted)
        speculation.observe_step(2, num_drafted, 1.0 + 0.4 * num_drafted)
    assert speculation.drafts([first, second], 1000) is None
    for _ in range(3):
        drafts = speculation.drafts([first], 1000)
        assert drafts is not None
        speculation.observe(first, len(drafts[0]), 0)
    assert speculation.drafts([first, second], 1000) is None
    assert first.drafter is not None
    assert second.drafter is not None
    assert first.drafter.chances[-1] < second.drafter.chances[-1] < 0.6, "it began at 0.7"
