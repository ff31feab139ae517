"""What `/metrics` says: one family for everything that is counted, of every model. It counts nothing itself.

Names and buckets do not change: dashboards depend on them. See `metric_aliases` for those of other servers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from stoker.core.histogram import Distribution, Histogram
from stoker.engine.metrics import PHASE_BOUNDS, STEP_BOUNDS
from stoker.engine.protocol import Heartbeat
from stoker.runtime.base import Health
from stoker.runtime.registry import ServedModel

_Families: TypeAlias = dict[str, Metric]

_MODEL = ("model",)
_GAUGES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "model_ready": ("1 if the model can answer now", _MODEL),
    "requests_open": ("Requests that were submitted and have not ended", _MODEL),
    "requests_running": ("Requests that are being computed", _MODEL),
    "requests_waiting": ("Requests that wait for their turn", _MODEL),
    "kv_used_tokens": ("KV of running requests, in tokens", _MODEL),
    "kv_retained_tokens": ("KV of finished conversations, in tokens", _MODEL),
    "kv_capacity_tokens": ("What the KV pool can hold, in tokens", _MODEL),
    "kv_usage_ratio": ("Part of the KV pool that running requests hold", _MODEL),
    "kv_tier_bytes": ("KV that has left the pool", ("model", "tier")),
    "prompt_tokens_per_second": ("Prompt tokens computed per second of computing prompts, since the start", _MODEL),
    "completion_tokens_per_second": ("Tokens written per second and request, since the start", _MODEL),
}
_COUNTERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "engine_restarts": ("How often the engine process was started again", _MODEL),
    "steps": ("Steps of the engine", _MODEL),
    "preemptions": ("Requests that had to give their place back for a while", _MODEL),
    "prompt_tokens": ("Tokens of prompts, cached ones too", ("model", "key")),
    "cached_tokens": ("Prompt tokens that were not computed", ("model", "key")),
    "completion_tokens": ("Tokens written", ("model", "key")),
    "computed_prompt_tokens": ("Prompt tokens that were computed", _MODEL),
    "prefix_queries_tokens": ("Prompt tokens that were looked for in the cache", _MODEL),
    "prefix_hits_tokens": ("Prompt tokens that were found there", ("model", "tier")),
    "kv_evicted": ("KV that had to make room: tokens of the pool, blocks of the tiers", ("model", "tier")),
    "requests": ("Requests that have ended; `abort` = the client has left", ("model", "key", "finish_reason")),
    "refusals": ("Requests that were not accepted, by the error's code", ("model", "code")),
    "failures": ("Requests that ended with an error after they had been accepted", ("model", "code")),
    "prefill_busy_seconds": ("Seconds that requests spent computing prompts", _MODEL),
    "decode_busy_seconds": ("Seconds that requests spent between their first and their last token", _MODEL),
}
_HISTOGRAMS: Mapping[str, str] = {
    "time_to_first_token_seconds": "From the submission of a request to its first token",
    "inter_token_seconds": "Between two tokens of a request",
    "request_seconds": "From the submission of a request to its last token",
    "decode_seconds": "From the first token of a request to its last",
    "queue_seconds": "From the arrival of a request to the first step that computes a part of it",
    "prefill_seconds": "From that step to the first token",
    "step_seconds": "One step of the engine",
}
PREFIX = "stoker_"


def families(models: Iterable[ServedModel]) -> list[Metric]:
    """Everything that is known now about these models; families without a value are there too."""
    found = _empty()
    for served in models:
        health = served.runtime.health()
        _add_health(found, served.model_id, health)
        if health.heartbeat is not None:
            _add_heartbeat(found, served.model_id, health.heartbeat)
        _add_requests(found, served)
    return list(found.values())


def _empty() -> _Families:
    gauges = {name: GaugeMetricFamily(PREFIX + name, text, labels=labels) for name, (text, labels) in _GAUGES.items()}
    counters = {
        name: CounterMetricFamily(PREFIX + name, text, labels=labels) for name, (text, labels) in _COUNTERS.items()
    }
    histograms = {name: HistogramMetricFamily(PREFIX + name, text, labels=_MODEL) for name, text in _HISTOGRAMS.items()}
    return {**gauges, **counters, **histograms}


def _add_health(found: _Families, model: str, health: Health) -> None:
    _add(found, "model_ready", float(health.is_ready), model)
    _add(found, "engine_restarts", health.num_restarts, model)


def _add_heartbeat(found: _Families, model: str, beat: Heartbeat) -> None:
    tiers = beat.tiers
    values: Mapping[str, float] = {
        "requests_running": beat.num_running,
        "requests_waiting": beat.num_waiting,
        "kv_used_tokens": beat.kv_used,
        "kv_retained_tokens": beat.kv_retained,
        "kv_capacity_tokens": beat.kv_capacity,
        "kv_usage_ratio": beat.kv_used / beat.kv_capacity if beat.kv_capacity else 0.0,
        "steps": beat.num_steps,
        "preemptions": beat.num_preemptions,
        "prefix_queries_tokens": beat.prompt_tokens,
        "computed_prompt_tokens": beat.prompt_tokens - beat.cached_tokens,
        "prefill_busy_seconds": beat.prefill_s.total,
        "prompt_tokens_per_second": _rate(beat.prompt_tokens - beat.cached_tokens, beat.prefill_s.total),
    }
    for name, value in values.items():
        _add(found, name, value, model)
    for tier, value in (("ram", tiers.ram_bytes), ("disk", tiers.disk_bytes)):
        _add(found, "kv_tier_bytes", value, model, tier)
    hits = {"pool": beat.pool_hit_tokens, "ram": tiers.ram_hit_tokens, "disk": tiers.disk_hit_tokens}
    evicted = {"pool": beat.pool_evicted_tokens, "ram": tiers.ram_evicted_blocks, "disk": tiers.disk_evicted_blocks}
    for tier in hits:
        _add(found, "prefix_hits_tokens", hits[tier], model, tier)
        _add(found, "kv_evicted", evicted[tier], model, tier)
    _add_distribution(found, "queue_seconds", model, PHASE_BOUNDS, beat.queue_s)
    _add_distribution(found, "prefill_seconds", model, PHASE_BOUNDS, beat.prefill_s)
    _add_distribution(found, "step_seconds", model, STEP_BOUNDS, beat.step_s)


def _add_requests(found: _Families, served: ServedModel) -> None:
    model, metrics = served.model_id, served.metrics
    _add(found, "requests_open", metrics.num_open, model)
    decode_s, num_later = metrics.decode_s.snapshot().total, metrics.num_later_tokens
    _add(found, "decode_busy_seconds", decode_s, model)
    _add(found, "completion_tokens_per_second", _rate(num_later, decode_s), model)
    for (key, reason), count in metrics.ends.items():
        _add(found, "requests", count, model, key, reason)
    by_key = {
        "prompt_tokens": metrics.prompt_tokens,
        "cached_tokens": metrics.cached_tokens,
        "completion_tokens": metrics.completion_tokens,
    }
    for name, counts in {**by_key, "refusals": metrics.refusals, "failures": metrics.failures}.items():
        for label, count in counts.items():
            _add(found, name, count, model, label)
    for name, histogram in {
        "time_to_first_token_seconds": metrics.ttft_s,
        "inter_token_seconds": metrics.token_s,
        "request_seconds": metrics.request_s,
        "decode_seconds": metrics.decode_s,
    }.items():
        _add_histogram(found, name, model, histogram)


def _rate(count: float, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


def _add(found: _Families, name: str, value: float, *labels: str) -> None:
    family = found[name]
    assert isinstance(family, GaugeMetricFamily | CounterMetricFamily)
    family.add_metric(labels, value)


def _add_histogram(found: _Families, name: str, model: str, histogram: Histogram) -> None:
    _add_distribution(found, name, model, histogram.bounds, histogram.snapshot())


def _add_distribution(found: _Families, name: str, model: str, bounds: tuple[float, ...], values: Distribution) -> None:
    family = found[name]
    assert isinstance(family, HistogramMetricFamily)
    family.add_metric([model], values.cumulative(bounds), values.total)
