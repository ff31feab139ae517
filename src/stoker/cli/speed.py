"""Measures how fast an answer is streamed, as its reader sees it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stoker.engine.protocol import Usage


class Stopwatch:
    """Measures one answer, from the creation of the stopwatch to the last piece that passes through `watch`."""

    def __init__(self) -> None:
        self._began_s = time.perf_counter()
        self._first_s: float | None = None
        self._last_s = self._began_s

    def watch(self, pieces: Iterable[str]) -> Iterator[str]:
        """Yields the same pieces, and records when they arrive."""
        for piece in pieces:
            self._last_s = time.perf_counter()
            if self._first_s is None:
                self._first_s = self._last_s
            yield piece

    def timings(self, usage: Usage) -> dict[str, float | None]:
        """Seconds to the first piece, seconds from it to the last one, and tokens per second; None = too few tokens."""
        first_s = self._last_s if self._first_s is None else self._first_s
        answer_s = self._last_s - first_s
        return {"prompt_s": first_s - self._began_s, "answer_s": answer_s, "tokens_per_s": _rate(usage, answer_s)}

    def described(self, usage: Usage) -> str:
        """The token counts of the prompt and of the answer and the time of each, as one line."""
        timings = self.timings(usage)
        prompt = f"prompt: {usage.prompt_tokens} tokens ({usage.cached_tokens} cached) in {timings['prompt_s']:.2f} s"
        rate = timings["tokens_per_s"]
        speed = "" if rate is None else f" in {timings['answer_s']:.2f} s, {rate:.1f} tokens/s"
        return f"({prompt}; answer: {usage.completion_tokens} tokens{speed})"


def _rate(usage: Usage, seconds: float) -> float | None:
    """Tokens per second; None for a single token, because its time is that of the prompt."""
    num_intervals = usage.completion_tokens - 1
    return num_intervals / seconds if num_intervals >= 1 and seconds > 0 else None
