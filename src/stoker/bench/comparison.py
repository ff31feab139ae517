"""Compares servers by ratios of medians, and refuses those that were not asked the same. It measures nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import NamedTuple

import msgspec

from stoker.bench.results import ModelIdentity, Plan, Results, Sample, ServerAbout
from stoker.bench.summary import FIGURE_KINDS, FigureKind, Point, Spread, Summary, summaries
from stoker.errors import InvalidInput

_PROMPT_TOLERANCE = 0.05
"""Allowed relative difference in prompt tokens: special tokens differ, and conversations contain a server's answers."""
_OUTPUT_TOLERANCE = 0.02


class Pair(NamedTuple):
    """One figure of two servers."""

    kind: FigureKind
    base: Spread
    other: Spread

    @property
    def ratio(self) -> float | None:
        """The median of `other` divided by that of `base`; None if the median of `base` is 0."""
        return self.other.median / self.base.median if self.base.median else None

    @property
    def is_clear(self) -> bool:
        """Whether the spreads of the two servers, from smallest to largest value, do not overlap."""
        return self.other.low > self.base.high or self.other.high < self.base.low


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two servers at one point of a scenario."""

    base: Summary
    other: Summary

    @property
    def point(self) -> Point:
        return self.base.point

    def pairs(self) -> list[Pair]:
        """The figures that both servers have."""
        spreads = [(kind, self.base.spread(kind), self.other.spread(kind)) for kind in FIGURE_KINDS]
        return [Pair(kind, base, other) for kind, base, other in spreads if base is not None and other is not None]


def joined(files: Mapping[str, Results]) -> Results:
    """Joins several results into one. If two servers have the same name, all servers are named after their files.

    Args:
        files: name of each file -> its results.

    Raises:
        InvalidInput: the files have different plans for a scenario.
    """
    parts = [_renamed(results, name) for name, results in files.items()] if _has_twins(files) else [*files.values()]
    for part in parts[1:]:
        _check_plans(parts[0].plans, part.plans)
    return msgspec.structs.replace(
        parts[0],
        servers=tuple(server for part in parts for server in part.servers),
        samples=tuple(sample for part in parts for sample in part.samples),
        absent=tuple(absent for part in parts for absent in part.absent),
    )


def compare(results: Results) -> list[Comparison]:
    """Compares every other server with the first one, at the points that both have.

    Raises:
        InvalidInput: the servers did not serve the same model, or computed prompts or answers of different lengths;
            or there is only one server, or the servers have no point in common.
    """
    if len(results.servers) < 2:
        raise InvalidInput("there is only one server in it: nothing to compare")
    base, *others = results.servers
    for other in others:
        _check_models(base, other)
    by_server = {(s.server, s.point): s for s in summaries(results.samples)}
    pairs = [(s, by_server.get((other.name, s.point))) for other in others for s in _of(base.name, results.samples)]
    found = [Comparison(own, theirs) for own, theirs in pairs if theirs is not None]
    if not found:
        raise InvalidInput("they have no scenario with the same concurrency in common: nothing to compare")
    for comparison in found:
        _check_lengths(comparison)
    return found


def _of(server: str, samples: Sequence[Sample]) -> list[Summary]:
    return [summary for summary in summaries(samples) if summary.server == server]


def _has_twins(files: Mapping[str, Results]) -> bool:
    names = [server.name for results in files.values() for server in results.servers]
    return len(set(names)) < len(names)


def _renamed(results: Results, name: str) -> Results:
    is_single = len(results.servers) == 1
    names = {server.name: name if is_single else f"{name}:{server.name}" for server in results.servers}
    change = msgspec.structs.replace
    return change(
        results,
        servers=tuple(change(server, name=names[server.name]) for server in results.servers),
        samples=tuple(change(sample, server=names[sample.server]) for sample in results.samples),
        absent=tuple(change(absent, server=names.get(absent.server, name)) for absent in results.absent),
    )


def _check_plans(ours: Sequence[Plan], theirs: Sequence[Plan]) -> None:
    by_scenario = {plan.scenario: plan for plan in ours}
    for plan in theirs:
        own = by_scenario.get(plan.scenario, plan)
        for key in ("prompt_tokens", "output_tokens", "num_requests", "turns", "shared_tokens", "limits", "endpoint"):
            a, b = getattr(own, key), getattr(plan, key)
            if a != b:
                raise InvalidInput(f"not comparable: {plan.scenario} was run with {key} {a} and {b}", parameter=key)


def _check_models(base: ServerAbout, other: ServerAbout) -> None:
    if not _is_same_model(base.model, other.model):
        raise InvalidInput(
            f"not comparable: {base.name} served {_title(base.model)}, {other.name} served {_title(other.model)}",
            parameter="model",
        )


def _is_same_model(a: ModelIdentity, b: ModelIdentity) -> bool:
    """Compares sizes if both models have them, because servers name the same file differently; otherwise names."""
    if a.num_parameters is not None and b.num_parameters is not None:
        is_same_vocab = None in (a.vocab_size, b.vocab_size) or a.vocab_size == b.vocab_size
        return a.num_parameters == b.num_parameters and is_same_vocab
    return _stem(a.name) == _stem(b.name)


def _stem(name: str) -> str:
    return PurePath(name).name.removesuffix(".gguf").lower()


def _title(model: ModelIdentity) -> str:
    size = "" if model.num_parameters is None else f" ({model.num_parameters / 1e6:.0f} M parameters)"
    return (model.name or "a model without a name") + size


def _check_lengths(comparison: Comparison) -> None:
    """Compares the tokens per complete answer: a server may ignore the lengths that a request asks for."""
    checks = (("prompt_tokens", _PROMPT_TOLERANCE), ("output_tokens", _OUTPUT_TOLERANCE))
    for name, tolerance in checks:
        base, other = _mean(comparison.base, name), _mean(comparison.other, name)
        if base is not None and other is not None and abs(base - other) > tolerance * max(base, other):
            raise InvalidInput(
                f"not comparable: in {comparison.point.scenario} {comparison.base.server} had {base:.1f} {name} per "
                f"request, {comparison.other.server} {other:.1f}",
                parameter=name,
            )


def _mean(summary: Summary, name: str) -> float | None:
    complete = sum(figures.num_requests - figures.num_failed for figures in summary.figures)
    return sum(getattr(figures, name) for figures in summary.figures) / complete if complete else None
