"""Computes figures from answers: times, rates and failures. A failed answer counts towards no time and no rate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from stoker.bench.request import Answer
from stoker.errors import InvalidInput


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits within which a request counts as good, for goodput as in DistServe (arXiv:2401.09670).

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
    """Resources that were used during a measurement. None = cannot be measured from this process."""

    peak_pss_bytes: int | None = None
    """Peak proportional set size (PSS) of the server's process tree: shared pages count once."""
    server_cpu_s: float | None = None
    """CPU time of the server's process tree, in seconds."""
    client_cpu_s: float | None = None
    """CPU time of the load generator itself, in seconds."""
    energy_j: float | None = None
    """Energy of the machine's processors and memory, in joules, whatever program used it."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one repetition at one point of a scenario. Times are in seconds; None if no answer has one."""

    num_requests: int
    failures: dict[str, int]
    """Kind of failure -> number of requests."""
    examples: dict[str, str]
    """Kind of failure -> detail of its first request."""
    num_short: int
    """Complete answers with fewer tokens than were asked for: the server did not honor the fixed length."""
    counts_from_usage: bool
    """Whether the server streamed its token counts. If not, output tokens are events with text, prompt tokens words."""
    duration_s: float
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    itl_p50_s: float | None
    """Inter-token latency: times between pieces of text, of all answers together."""
    itl_p99_s: float | None
    itl_max_s: float | None
    prompt_tokens: int
    """Prompt tokens of the complete answers, cached ones included."""
    output_tokens: int
    cached_tokens: int | None
    """Prompt tokens that the server reports as cached; None if it reports no number."""
    resent_share: float | None = None
    """Share of cached tokens in the prompt tokens that conversations repeat, 0 to 1; None if none are repeated."""
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    num_good: int
    """Complete answers within the limits."""
    goodput_per_s: float | None
    """Requests per second within the limits; None if the answers were not timed."""
    resources: Resources = Resources()

    @property
    def num_failed(self) -> int:
        return sum(self.failures.values())


def figures_of(
    answers: Sequence[Answer], limits: Limits, resources: Resources | None = None, duration_s: float | None = None
) -> Figures:
    """Computes the figures of some answers.

    Args:
        answers: at least one.
        duration_s: time for rates, in seconds. None = from the first request to the end of the last answer.
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
    """The percentile (0 to 100), interpolated linearly; None if there are no values."""
    return float(np.percentile(values, percent)) if values else None


def _resent_share(answers: Sequence[Answer]) -> float | None:
    again = [(a.resent_tokens, a.cached_tokens) for a in answers if a.resent_tokens and a.cached_tokens is not None]
    num_resent = sum(resent for resent, _ in again)
    return sum(min(resent, cached) for resent, cached in again) / num_resent if num_resent else None


def _rate(count: int, duration_s: float) -> float:
    return count / duration_s if duration_s > 0 else 0.0
