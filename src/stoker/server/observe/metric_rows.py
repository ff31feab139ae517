"""Building blocks of the tables of metrics: the kinds of metric families, and functions that supply their values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

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


_Samples: TypeAlias = Iterable[tuple[tuple[str, ...], Sequence[Any]]]


@dataclass(frozen=True, slots=True)
class _Source:
    """Supplies the values of a metric family."""

    samples: Callable[[Facts], _Samples]
    """The values of the labels and the value (of a histogram: buckets and sum), for each sample of one model."""
    labels: tuple[str, ...] = ()
    """Names of the labels after `model`."""
    is_of_requests: bool = False
    """Whether it counts requests answered by this server, as opposed to an engine's report. Several servers in front
    of the same engines each count their own requests."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table, which makes one metric family of `/metrics`."""

    kind: type[GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily]
    name: str
    """Name of the family, without `PREFIX`."""
    help: str
    source: _Source

    def family(self, models: Iterable[Facts]) -> Metric:
        """The family with the samples of these models."""
        family = self.kind(PREFIX + self.name, self.help, labels=("model", *self.source.labels))
        for facts in models:
            for labels, value in self.source.samples(facts):
                family.add_metric((facts.status.model_id, *labels), *value)
        family.samples = [sample._replace(labels=_known(sample.labels)) for sample in family.samples]
        return family


gauge = partial(Row, GaugeMetricFamily)
counter = partial(Row, CounterMetricFamily)
histogram = partial(Row, HistogramMetricFamily)


def of_model(value: Callable[[Facts], float]) -> _Source:
    """One number for each model."""
    return _Source(lambda facts: _one(value(facts)))


def of_unloads() -> _Source:
    """The number of unloads of each model, for each reason."""
    return _Source(lambda facts: _each(facts.status.unloads), ("reason",))


def of_requests(value: Callable[[RequestMetrics], float]) -> _Source:
    """One number for each model, from the counts of its requests."""
    return _Source(lambda facts: _one(value(facts.requests)), is_of_requests=True)


def counts(label: str, found: Callable[[RequestMetrics], Mapping[str, int]]) -> _Source:
    """One number for each value of a label, from the counts of the model's requests."""
    return _Source(lambda facts: _each(found(facts.requests)), (label,), is_of_requests=True)


def pairs(first: str, second: str, found: Callable[[RequestMetrics], Mapping[tuple[str, str], int]]) -> _Source:
    """One number for each pair of values of two labels, from the counts of the model's requests."""
    return _Source(
        lambda facts: [(labels, (count,)) for labels, count in found(facts.requests).items()],
        (first, second),
        is_of_requests=True,
    )


def _one(value: float) -> _Samples:
    return [((), (value,))]


def _each(values: Mapping[str, float]) -> _Samples:
    return [((label,), (value,)) for label, value in values.items()]


def _reported(samples: Callable[[EngineStats], _Samples], *labels: str) -> _Source:
    """Samples from the newest report of the engine; none before the first report."""
    return _Source(lambda facts: [] if facts.health.heartbeat is None else samples(facts.health.heartbeat), labels)


def of_engine(value: Callable[[EngineStats], float]) -> _Source:
    """One number from the newest report of the engine."""
    return _reported(lambda stats: _one(value(stats)))


def of_lender(value: Callable[[EngineStats], float]) -> _Source:
    """Like `of_engine`, only for models whose KV pools have no fixed size."""
    return _reported(lambda stats: _one(value(stats)) if stats.kv_share_bytes else [])


def borrowed_bytes(stats: EngineStats) -> int:
    """Bytes of KV that the pool may hold beyond its own share."""
    return max(0, stats.kv_capacity_bytes - stats.kv_share_bytes)


def lent_bytes(stats: EngineStats) -> int:
    """Bytes of the pool's own share that it may not use, because they are lent."""
    return max(0, stats.kv_share_bytes - stats.kv_capacity_bytes)


def of_drafts(value: Callable[[EngineStats], float]) -> _Source:
    """Like `of_engine`, for drafts (speculative decoding). llama-server counts no steps and does not report drafts."""
    return _reported(lambda stats: _one(value(stats)) if stats.num_steps else [])


def of_encoder(value: Callable[[EncoderLoad], float]) -> _Source:
    """One number from the process that encodes images and recordings; none if the model takes only text."""
    return _Source(lambda facts: [] if facts.health.encoder is None else _one(value(facts.health.encoder)))


def of_transcriber(value: Callable[[TranscriberLoad], float]) -> _Source:
    """One number from the process that transcribes speech; none if the model does not transcribe."""
    return _Source(lambda facts: [] if facts.health.transcriber is None else _one(value(facts.health.transcriber)))


def each_draft(label: str, **values: Callable[[EngineStats], float]) -> _Source:
    """Like `of_drafts`, with one number for each of these values of a label."""
    return _reported(lambda stats: _called(values, stats) if stats.num_steps else [], label)


def each(label: str, **values: Callable[[EngineStats], float]) -> _Source:
    """One number for each of these values of a label, from the newest report of the engine."""
    return _reported(lambda stats: _called(values, stats), label)


def _called(values: Mapping[str, Callable[[EngineStats], float]], stats: EngineStats) -> _Samples:
    return _each({label: value(stats) for label, value in values.items()})


def of_adapters(value: Callable[[AdapterLoad], float]) -> _Source:
    """One number for each loaded LoRA adapter."""
    return _reported(lambda stats: [((adapter.name,), (value(adapter),)) for adapter in stats.adapters], "adapter")


def _known(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels that have a value: only replicas of a cluster have a `node`."""
    return {name: value for name, value in labels.items() if value or name != "node"}


def of_replicas(value: Callable[[Health], float]) -> _Source:
    """One number for each replica."""
    return _Source(
        lambda facts: [
            ((str(number), replica.node), (value(replica),)) for number, replica in facts.health.replicas.items()
        ],
        ("replica", "node"),
    )


def of_replica_engines(value: Callable[[EngineStats], float]) -> _Source:
    """One number from the newest report of each replica."""
    return _Source(
        lambda facts: [
            ((str(number), replica.node), (value(replica.heartbeat),))
            for number, replica in facts.health.replicas.items()
            if replica.heartbeat is not None
        ],
        ("replica", "node"),
    )


def by_request(of: Callable[[RequestMetrics], Histogram]) -> _Source:
    """A histogram over the requests of the model."""
    return _Source(
        lambda facts: _distributed(of(facts.requests).bounds, of(facts.requests).snapshot()), is_of_requests=True
    )


def by_engine(bounds: Sequence[float], values: Callable[[EngineStats], Distribution]) -> _Source:
    """A histogram that the engine reports."""
    return _reported(lambda stats: _distributed(bounds, values(stats)))


def _distributed(bounds: Sequence[float], values: Distribution) -> _Samples:
    return [((), (values.cumulative(bounds), values.total))]


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
