"""Combines the metrics of several servers in front of the same engines. A given function queries the other servers.

Each server, a *front*, counts the requests that it has answered, and a scrape reaches any one front. So this front
queries the others, and a label `front` tells whose requests a sample counts. Metrics of engines appear only once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import msgspec
from prometheus_client.core import Metric

from stoker.runtime.registry import ModelStatus
from stoker.server.observe.metric_rows import PREFIX, Facts
from stoker.server.observe.metrics import NOT_LOADED, ROWS
from stoker.server.observe.response_counts import ResponseCounts

_RESPONSES = ResponseCounts().family().name
_NAMES = (*(PREFIX + row.name for row in ROWS if row.source.is_of_requests), _RESPONSES)
"""Names of the metric families that each front counts by itself."""


class RequestSample(msgspec.Struct, frozen=True, array_like=True):
    """One sample of a metric family that counts the requests of one front; it can be sent to another front."""

    family: str
    name: str
    labels: dict[str, str]
    value: float


async def _no_others() -> Mapping[str, Sequence[RequestSample]]:
    return {}


class Fronts:
    """The servers in front of the same engines.

    Args:
        own: name of this front; empty = there is only one, and no label.
        ask: queries the other fronts, and returns their samples by name of the front.
    """

    def __init__(
        self, own: str = "", ask: Callable[[], Awaitable[Mapping[str, Sequence[RequestSample]]]] = _no_others
    ) -> None:
        self.own = own
        self.ask = ask


def request_samples(models: Iterable[ModelStatus], responses: ResponseCounts) -> list[RequestSample]:
    """The samples that this front has counted, which other fronts do not know."""
    facts = [Facts(status, NOT_LOADED) for status in models]
    found = [*(row.family(facts) for row in ROWS if row.source.is_of_requests), responses.family()]
    return [
        RequestSample(family.name, sample.name, dict(sample.labels), sample.value)
        for family in found
        for sample in family.samples
    ]


def add_fronts(families: Iterable[Metric], own: str, others: Mapping[str, Sequence[RequestSample]]) -> None:
    """Labels the samples that this front has counted, and adds those of the other fronts to the same families.

    Args:
        families: metric families of this front, including those of its responses; modified in place.
        own: name of this front.
        others: samples of the other fronts, by name of the front.
    """
    by_name = {family.name: family for family in families}
    for family in (by_name[name] for name in _NAMES):
        family.samples = [sample._replace(labels={**sample.labels, "front": own}) for sample in family.samples]
    for front, samples in others.items():
        for sample in samples:
            by_name[sample.family].add_sample(sample.name, {**sample.labels, "front": front}, sample.value)
