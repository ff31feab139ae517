"""Summarizes repetitions: medians with their spread, for each server at each point. It neither prints nor compares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, NamedTuple

from stoker.bench.figures import Figures
from stoker.bench.results import Results, Sample
from stoker.bench.scenarios import SCENARIOS


class Spread(NamedTuple):
    """Median, smallest and largest value of one figure over all repetitions."""

    median: float
    low: float
    high: float


class Point(NamedTuple):
    """Where in a scenario something was measured: in which phase (empty = all), with how many concurrent requests."""

    scenario: str
    phase: str
    concurrency: int


@dataclass(frozen=True, slots=True)
class FigureKind:
    """A figure that is shown: its label and unit, how it is computed, and which direction is better."""

    label: str
    unit: str
    value: Callable[[Figures], float | None]
    better: Literal["lower", "higher", "neither"] = "lower"


def _times(seconds: float | None, factor: float) -> float | None:
    return None if seconds is None else seconds * factor


def _energy_per_token(figures: Figures) -> float | None:
    tokens = figures.output_tokens
    return _times(figures.resources.energy_j, 1 / tokens) if tokens else None


FIGURE_KINDS = (
    FigureKind("TTFT p50", "ms", lambda f: _times(f.ttft_p50_s, 1e3)),
    FigureKind("TTFT p95", "ms", lambda f: _times(f.ttft_p95_s, 1e3)),
    FigureKind("ITL p50", "ms", lambda f: _times(f.itl_p50_s, 1e3)),
    FigureKind("ITL p99", "ms", lambda f: _times(f.itl_p99_s, 1e3)),
    FigureKind("ITL max", "ms", lambda f: _times(f.itl_max_s, 1e3)),
    FigureKind("output", "tok/s", lambda f: f.output_tokens_per_s, "higher"),
    FigureKind("prompt", "tok/s", lambda f: f.prompt_tokens_per_s, "higher"),
    FigureKind("goodput", "req/s", lambda f: f.goodput_per_s, "higher"),
    FigureKind("cached", "tokens", lambda f: f.cached_tokens, "neither"),
    FigureKind("resent cached", "%", lambda f: _times(f.resent_share, 100), "higher"),
    FigureKind("peak PSS", "MB", lambda f: _times(f.resources.peak_pss_bytes, 1e-6)),
    FigureKind("CPU", "s", lambda f: f.resources.server_cpu_s),
    FigureKind("energy", "J/tok", _energy_per_token),
)


@dataclass(frozen=True, slots=True)
class Summary:
    """One server at one point, over all repetitions."""

    server: str
    point: Point
    figures: tuple[Figures, ...]

    def spread(self, kind: FigureKind) -> Spread | None:
        """Median, smallest and largest value; None if no repetition has this figure."""
        values = [value for figures in self.figures if (value := kind.value(figures)) is not None]
        return Spread(median(values), min(values), max(values)) if values else None

    @property
    def num_requests(self) -> int:
        return sum(figures.num_requests for figures in self.figures)

    @property
    def failures(self) -> Counter[str]:
        """Kind of failure -> number of requests, in all repetitions."""
        return sum((Counter(figures.failures) for figures in self.figures), Counter[str]())

    @property
    def examples(self) -> dict[str, str]:
        """Kind of failure -> detail of one request."""
        return {kind: said for figures in self.figures for kind, said in figures.examples.items()}

    @property
    def num_short(self) -> int:
        return sum(figures.num_short for figures in self.figures)

    @property
    def counts_from_usage(self) -> bool:
        return all(figures.counts_from_usage for figures in self.figures)


def summaries(samples: Iterable[Sample]) -> list[Summary]:
    """Summaries in the order of scenario, phase, server and concurrency, each in the order of first appearance."""
    groups: dict[tuple[str, Point], list[Figures]] = {}
    for sample in samples:
        point = Point(sample.scenario, sample.phase, sample.concurrency)
        groups.setdefault((sample.server, point), []).append(sample.figures)
    found = [Summary(server, point, tuple(figures)) for (server, point), figures in groups.items()]
    order = _first_places((s.point.scenario, s.point.phase, s.server) for s in found)
    return sorted(found, key=lambda s: order[s.point.scenario, s.point.phase, s.server])


def remarks(results: Results) -> list[str]:
    """What a reader of the figures must know, one line each: failures, guessed counts, and what looks wrong."""
    absent = [f"{a.server}, {a.scenario}: absent: {a.reason}" for a in results.absent]
    found = [line for summary in summaries(results.samples) for line in _complaints(summary)]
    guessed = {sample.server: None for sample in results.samples if not sample.figures.counts_from_usage}
    guesses = [f"{name} streams no usage: output tokens are events with text, prompt tokens words" for name in guessed]
    return [*absent, *found, *guesses, *_busy_client(results.samples)]


def _complaints(summary: Summary) -> Iterator[str]:
    where = _where(summary)
    for kind, count in summary.failures.items():
        said = summary.examples[kind]
        yield f"{where}: {count} of {summary.num_requests} requests failed: {kind}: {said}"
    if summary.num_short:
        yield f"{where}: {summary.num_short} answers were shorter than asked for"
    if not _EXPECTS_CACHE.get(summary.point.scenario, True) and _cached_share(summary) > _CACHED_BY_ACCIDENT:
        yield f"{where}: {_cached_share(summary):.0%} of the prompts came from the cache: use another --seed"


_CACHED_BY_ACCIDENT = 0.1
_EXPECTS_CACHE = {scenario.name: scenario.expects_cache for scenario in SCENARIOS.values()}


def _cached_share(summary: Summary) -> float:
    prompts = sum(figures.prompt_tokens for figures in summary.figures)
    return sum(figures.cached_tokens or 0 for figures in summary.figures) / prompts if prompts else 0.0


def _where(summary: Summary) -> str:
    phase = f" ({summary.point.phase})" if summary.point.phase else ""
    return f"{summary.server}, {summary.point.scenario}{phase} at {summary.point.concurrency}"


_CLIENT_SHARE = 0.25


def _busy_client(samples: Sequence[Sample]) -> list[str]:
    shares = [_client_share(sample.figures) for sample in samples]
    most = max(shares, default=0.0)
    if most <= _CLIENT_SHARE:
        return []
    return [f"the load generator itself used up to {most:.0%} of a core: it may have slowed what it measured"]


def _client_share(figures: Figures) -> float:
    used_s = figures.resources.client_cpu_s
    # Short runs consist mostly of opening connections, which needs CPU time.
    return 0.0 if used_s is None or figures.duration_s < 1 else used_s / figures.duration_s


def _first_places(keys: Iterable[tuple[str, str, str]]) -> dict[tuple[str, str, str], int]:
    places: dict[tuple[str, str, str], int] = {}
    for key in keys:
        places.setdefault(key, len(places))
    return places
