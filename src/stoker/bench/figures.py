"""Answers to figures: times, rates, and who failed. An answer that failed counts towards no time and no rate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from stoker.bench.request import Answer
from stoker.errors import InvalidInput


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a request must keep to count as good: goodput as in DistServe (arXiv:2401.09670).

    Raises:
        InvalidInput: a limit is not above 0.
    """

    ttft_s: float = 2.0
    """Longest time to the first token, in seconds."""
    itl_s: float = 0.2
    """Longest mean time between two tokens of one answer, in seconds."""

    def __post_init__(self) -> None:
        for name in ("ttft_s", "itl_s"):
            if not getattr(self, name) > 0:
                raise InvalidInput(f"`{name}` must be above 0 seconds, not {getattr(self, name)}", parameter=name)


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """What the processes took meanwhile. None: cannot be seen from here."""

    peak_pss_bytes: int | None = None
    """Most proportional set size of the server's process tree: shared pages count once."""
    server_cpu_s: float | None = None
    """CPU time of the server's process tree."""
    client_cpu_s: float | None = None
    """CPU time of the load generator itself."""
    energy_j: float | None = None
    """Energy of the machine's processors and memory, whatever used it."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One repetition at one point. Times in seconds; None where no answer gives one."""

    num_requests: int
    failures: dict[str, int]
    """Kind of failure -> how many."""
    examples: dict[str, str]
    """Kind of failure -> what the first one said."""
    num_short: int
    """Complete answers with fewer tokens than were asked for: the server did not honor the fixed length."""
    counts_from_usage: bool
    """The server streamed its token counts. If not: output tokens are events with text, prompt tokens are words."""
    duration_s: float
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    itl_p50_s: float | None
    """Inter-token latency: times between pieces of text, of all answers together."""
    itl_p99_s: float | None
    itl_max_s: float | None
    prompt_tokens: int
    """Of the complete answers, cached ones included."""
    output_tokens: int
    cached_tokens: int | None
    """Prompt tokens that the server says it did not compute."""
    resent_share: float | None = None
    """Of the prompt tokens that a conversation repeats, those that were not computed; None if none repeats any."""
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    num_good: int
    """Complete answers within the limits."""
    goodput_per_s: float | None
    """Requests per second within the objectives; None if the answers were not timed."""
    resources: Resources = Resources()

    @property
    def num_failed(self) -> int:
        return sum(self.failures.values())


def figures_of(
    answers: Sequence[Answer], limits: Limits, resources: Resources | None = None, duration_s: float | None = None
) -> Figures:
    """Adds up answers.

    Args:
        answers: at least one.
        duration_s: what rates are relative to. Not given: from the first request to the last end.
    """
    complete = [answer for answer in answers if answer.failure is None]
    failures = [answer.failure for answer in answers if answer.failure is not None]
    if duration_s is None:
        duration_s = max(answer.ended_s for answer in answers) - min(answer.sent_s for answer in answers)
    gaps_s = [gap for answer in complete for gap in answer.gaps_s]
    ttfts_s = [answer.ttft_s for answer in complete if answer.is_timed]
    cached = [answer.cached_tokens for answer in complete if answer.cached_tokens is not None]
    prompt_tokens, output_tokens = sum(a.num_prompt for a in complete), sum(a.num_output for a in complete)
    num_good = sum(is_good(answer, limits) for answer in complete if answer.is_timed)
    return Figures(
        num_requests=len(answers),
        failures=dict(Counter(str(failure.kind) for failure in failures)),
        examples={str(failure.kind): failure.detail for failure in reversed(failures)},
        num_short=sum(answer.num_output < answer.job.output_tokens for answer in complete),
        counts_from_usage=all(answer.completion_tokens is not None for answer in complete),
        duration_s=duration_s,
        ttft_p50_s=percentile(ttfts_s, 50),
        ttft_p95_s=percentile(ttfts_s, 95),
        itl_p50_s=percentile(gaps_s, 50),
        itl_p99_s=percentile(gaps_s, 99),
        itl_max_s=max(gaps_s, default=None),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        cached_tokens=sum(cached) if cached else None,
        resent_share=_resent_share(complete),
        prompt_tokens_per_s=_rate(prompt_tokens, duration_s),
        output_tokens_per_s=_rate(output_tokens, duration_s),
        num_good=num_good,
        goodput_per_s=_rate(num_good, duration_s) if any(answer.is_timed for answer in answers) else None,
        resources=resources or Resources(),
    )


def is_good(answer: Answer, limits: Limits) -> bool:
    """Whether a complete answer kept the limits."""
    gaps_s = answer.gaps_s
    return answer.ttft_s <= limits.ttft_s and (not gaps_s or sum(gaps_s) / len(gaps_s) <= limits.itl_s)


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Linear between neighbors; None of nothing."""
    return float(np.percentile(values, percent)) if values else None


def _resent_share(answers: Sequence[Answer]) -> float | None:
    again = [(a.resent_tokens, a.cached_tokens) for a in answers if a.resent_tokens and a.cached_tokens is not None]
    num_resent = sum(resent for resent, _ in again)
    return sum(min(resent, cached) for resent, cached in again) / num_resent if num_resent else None


def _rate(count: int, duration_s: float) -> float:
    return count / duration_s if duration_s > 0 else 0.0
