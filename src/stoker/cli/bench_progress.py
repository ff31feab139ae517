"""What `stoker bench` shows while it measures: one line that lives on a terminal, one line per repetition elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stoker.cli.report import say

if TYPE_CHECKING:
    from stoker.bench.request import Answer
    from stoker.bench.results import Plan, Sample

_REDRAW_EVERY_S = 0.2


class BenchProgress:
    """Satisfies `bench.runner.Watch`."""

    def __init__(self) -> None:
        self._is_live = sys.stderr.isatty()
        self._title = ""
        self._num_pieces = self._num_answers = self._num_failed = 0
        self._began_s = self._drawn_s = 0.0

    def begin(self, server: str, plan: Plan, repetition: int) -> None:
        """See `Watch.begin`."""
        self._title = f"{plan.scenario}, {server}, {repetition + 1} of {plan.repetitions}"
        self._num_pieces = self._num_answers = self._num_failed = 0
        self._began_s = time.monotonic()
        self._draw()

    def piece(self) -> None:
        """See `Watch.piece`."""
        self._num_pieces += 1
        if self._is_live and time.monotonic() - self._drawn_s > _REDRAW_EVERY_S:
            self._draw()

    def answered(self, answer: Answer) -> None:
        """See `Watch.answered`."""
        self._num_answers += 1
        self._num_failed += answer.failure is not None

    def end(self, samples: Sequence[Sample]) -> None:
        """See `Watch.end`."""
        if self._is_live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        say(self._line())

    def _draw(self) -> None:
        self._drawn_s = time.monotonic()
        if self._is_live:
            print(f"\r\x1b[K{self._line()}", end="", file=sys.stderr, flush=True)

    def _line(self) -> str:
        elapsed_s = time.monotonic() - self._began_s
        failed = f", {self._num_failed} FAILED" if self._num_failed else ""
        return f"{self._title}: {self._num_answers} answers, {self._num_pieces} pieces, {elapsed_s:.1f} s{failed}"
