"""Building blocks of the tables of metrics: the kinds of metric families, and functions that supply their values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from stoker.core.histogram import Distribution, Histogram
from stoker.engine.health import Health
from stoker.engine.stats import AdapterLoad, EngineStats
from stoker.media.load import EncoderLoad, TranscriberLoad
from stoker.runtime.registry import ModelStatus
from stoker.runtime.request_metrics import RequestMetrics

PREFIX = "stoker_"


@dataclass(frozen=True, slots=True)
class Facts:
    """The state and the health of one model at the time of a scrape."""

    status: ModelStatus
    health: Health

    @property
    def requests(self) -> RequestMetrics:
        return self.status.metrics


_Labels: TypeAlias = tuple[str, ...]
_Numbers: TypeAlias = Iterable[tuple[_Labels, float]]
_Values: TypeAlias = Callable[[Facts], _Numbers]
_Buckets: TypeAlias = Callable[[Facts], Iterable[tuple[Sequence[float], Distribution]]]


class OfRequests:
    """Marks a source of values that counts requests answered by this server, as opposed to an engine's report.

    Several servers in front of the same engines each count their own requests.
    """

    def __init__(self, values: Callable[[Facts], Any]) -> None:
        self._values = values

    def __call__(self, facts: Facts) -> Any:
        return self._values(facts)


class Row(Protocol):
    """A row of the table, which makes one metric family of `/metrics`."""

    @property
    def name(self) -> str:
        """Name of the family, without `PREFIX`."""
        ...

    @property
    def is_of_requests(self) -> bool:
        """Whether the values count requests of this server, see `OfRequests`."""
        ...

    def family(self, models: Iterable[Facts]) -> Metric:
        """The family with the samples of these models."""
        ...


@dataclass(frozen=True, slots=True)
class _Numbered:
    """A family of gauges or counters."""

    kind: type[GaugeMetricFamily | CounterMetricFamily]
    name: str
    help: str
    values: _Values
    """The number for each set of label values."""
    labels: _Labels = ()
    """Names of the labels after `model`."""

    @property
    def is_of_requests(self) -> bool:
        return isinstance(self.values, OfRequests)

    def family(self, models: Iterable[Facts]) -> Metric:
        """The family with the samples of these models."""
        family = self.kind(PREFIX + self.name, self.help, labels=("model", *self.labels))
        for facts in models:
            for labels, value in self.values(facts):
                family.add_metric((facts.status.model_id, *labels), value)
        family.samples = [sample._replace(labels=_known(sample.labels)) for sample in family.samples]
        return family


@dataclass(frozen=True, slots=True)
class _Distributed:
    """A family of histograms, one for each model."""

    name: str
    help: str
    values: _Buckets
    """Upper bounds of the buckets and the distribution; empty if there is none yet."""

    @property
    def is_of_requests(self) -> bool:
        return isinstance(self.values, OfRequests)

    def family(self, models: Iterable[Facts]) -> Metric:
        """The family with the histograms of these models."""
        family = HistogramMetricFamily(PREFIX + self.name, self.help, labels=("model",))
        for facts in models:
            for bounds, values in self.values(facts):
                family.add_metric((facts.status.model_id,), values.cumulative(bounds), values.total)
        return family


gauge = partial(_Numbered, GaugeMetricFamily)
counter = partial(_Numbered, CounterMetricFamily)
histogram = _Distributed


def of_model(value: Callable[[Facts], float]) -> _Values:
    """One number for each model."""
    return lambda facts: [((), value(facts))]


def of_requests(value: Callable[[RequestMetrics], float]) -> _Values:
    """One number for each model, from the counts of its requests."""
    return OfRequests(lambda facts: [((), value(facts.requests))])


def counts(found: Callable[[RequestMetrics], Mapping[str, int]]) -> _Values:
    """One number for each value of a label, from the counts of the model's requests."""
    return OfRequests(lambda facts: [((label,), count) for label, count in found(facts.requests).items()])


def pairs(found: Callable[[RequestMetrics], Mapping[tuple[str, str], int]]) -> _Values:
    """One number for each pair of values of two labels, from the counts of the model's requests."""
    return OfRequests(lambda facts: found(facts.requests).items())


def labeled(values: Callable[[EngineStats], _Numbers]) -> _Values:
    """Numbers from the newest report of the engine; none before the first report."""
    return lambda facts: [] if facts.health.heartbeat is None else values(facts.health.heartbeat)


def of_engine(value: Callable[[EngineStats], float]) -> _Values:
    """One number from the newest report of the engine."""
    return labeled(lambda stats: [((), value(stats))])


def of_lender(value: Callable[[EngineStats], float]) -> _Values:
    """Like `of_engine`, only for models whose KV pools have no fixed size."""
    return labeled(lambda stats: [((), value(stats))] if stats.kv_share_bytes else [])


def borrowed_bytes(stats: EngineStats) -> int:
    """Bytes of KV that the pool may hold beyond its own share."""
    return max(0, stats.kv_capacity_bytes - stats.kv_share_bytes)


def lent_bytes(stats: EngineStats) -> int:
    """Bytes of the pool's own share that it may not use, because they are lent."""
    return max(0, stats.kv_share_bytes - stats.kv_capacity_bytes)


def of_drafts(value: Callable[[EngineStats], float]) -> _Values:
    """Like `of_engine`, for drafts (speculative decoding). llama-server counts no steps and does not report drafts."""
    return labeled(lambda stats: [((), value(stats))] if stats.num_steps else [])


def of_encoder(value: Callable[[EncoderLoad], float]) -> _Values:
    """One number from the process that encodes images and recordings; none if the model takes only text."""

    def values(of: Facts) -> _Numbers:
        encoder = of.health.encoder
        return [] if encoder is None else [((), value(encoder))]

    return values


def of_transcriber(value: Callable[[TranscriberLoad], float]) -> _Values:
    """One number from the process that transcribes speech; none if the model does not transcribe."""

    def values(of: Facts) -> _Numbers:
        transcriber = of.health.transcriber
        return [] if transcriber is None else [((), value(transcriber))]

    return values


def each_draft(**values: Callable[[EngineStats], float]) -> _Values:
    """Like `of_drafts`, with one number for each of these values of a label."""
    return labeled(
        lambda stats: [((label,), value(stats)) for label, value in values.items()] if stats.num_steps else []
    )


def each(**values: Callable[[EngineStats], float]) -> _Values:
    """One number for each of these values of a label, from the newest report of the engine."""
    return labeled(lambda stats: [((label,), value(stats)) for label, value in values.items()])


def of_adapters(value: Callable[[AdapterLoad], float]) -> _Values:
    """One number for each loaded LoRA adapter."""
    return labeled(lambda stats: [((adapter.name,), value(adapter)) for adapter in stats.adapters])


def _known(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels that have a value: only replicas of a cluster have a `node`."""
    return {name: value for name, value in labels.items() if value or name != "node"}


def of_replicas(value: Callable[[Health], float]) -> _Values:
    """One number for each replica."""
    return lambda facts: [
        ((str(number), replica.node), value(replica)) for number, replica in facts.health.replicas.items()
    ]


def of_replica_engines(value: Callable[[EngineStats], float]) -> _Values:
    """One number from the newest report of each replica."""
    return lambda facts: [
        ((str(number), replica.node), value(replica.heartbeat))
        for number, replica in facts.health.replicas.items()
        if replica.heartbeat is not None
    ]


def by_request(of: Callable[[RequestMetrics], Histogram]) -> _Buckets:
    """A histogram over the requests of the model."""
    return OfRequests(lambda facts: [(of(facts.requests).bounds, of(facts.requests).snapshot())])


def by_engine(bounds: Sequence[float], values: Callable[[EngineStats], Distribution]) -> _Buckets:
    """A histogram that the engine reports."""
    return lambda facts: [] if facts.health.heartbeat is None else [(bounds, values(facts.health.heartbeat))]


def rate(count: float, seconds: float) -> float:
    """Count per second; 0 if no time has passed."""
    return count / seconds if seconds > 0 else 0.0


def computed_prompt_tokens(stats: EngineStats) -> int:
    """Number of prompt tokens that were computed, because the cache did not hold them."""
    return stats.prompt_tokens - stats.cached_tokens


def tier_queries(stats: EngineStats) -> int:
    """Number of prompt tokens that were looked up in the cache tiers in RAM and on disk; 0 without these tiers."""
    has_tiers = stats.tiers.ram_limit_bytes > 0 or stats.tiers.disk_limit_bytes > 0
    return stats.prompt_tokens - stats.pool_hit_tokens if has_tiers else 0


def decode_seconds(requests: RequestMetrics) -> float:
    """Total time of all requests between their first and their last token, in seconds."""
    return requests.decode_s.snapshot().total
