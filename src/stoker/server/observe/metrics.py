"""What `/metrics` says: one family for everything that is counted, of every model. It counts nothing itself.

Names and buckets do not change: dashboards depend on them. See `metric_aliases` for those of other servers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from stoker.cache.counters import TierCounters
from stoker.core.histogram import Distribution, Histogram
from stoker.engine.health import Health
from stoker.engine.metrics import PHASE_BOUNDS, STEP_BOUNDS, STEP_TOKEN_BOUNDS
from stoker.engine.stats import EngineStats
from stoker.runtime.registry import ModelStatus
from stoker.runtime.request_metrics import RequestMetrics

_Families: TypeAlias = dict[str, Metric]

_MODEL = ("model",)
_REPLICA = ("model", "replica")
_TRANSFER = ("model", "transfer")
_GAUGES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "model_ready": ("1 if the model can answer now", _MODEL),
    "requests_open": ("Requests that were submitted and have not ended", _MODEL),
    "requests_running": ("Requests that are being computed", _MODEL),
    "requests_waiting": ("Requests that wait for their turn", _MODEL),
    "requests_paused": ("Requests whose clients do not take what was written for them", _MODEL),
    "kv_used_tokens": ("KV of running requests, in tokens", _MODEL),
    "kv_retained_tokens": ("KV of finished conversations, in tokens", _MODEL),
    "kv_capacity_tokens": ("What the KV pool can hold, in tokens", _MODEL),
    "kv_sequences": ("Running requests and finished conversations that hold KV", _MODEL),
    "kv_held_bytes": ("KV of both, if the backend says what a token takes", _MODEL),
    "kv_capacity_bytes": ("What the KV pool can hold, if the backend says what a token takes", _MODEL),
    "state_held_bytes": ("States of recurrent layers, of running requests and finished conversations", _MODEL),
    "kv_usage_ratio": ("Part of the KV pool that running requests hold", _MODEL),
    "kv_tier_bytes": ("KV that has left the pool", ("model", "tier")),
    "adapter_requests_running": ("Requests that are being computed with an adapter", ("model", "adapter")),
    "adapter_requests_waiting": ("Requests with an adapter that wait for their turn", ("model", "adapter")),
    "prompt_tokens_per_second": ("Prompt tokens computed per second of computing prompts, since the start", _MODEL),
    "completion_tokens_per_second": ("Tokens written per second and request, since the start", _MODEL),
    "requests_per_step": ("Requests that a step computes a part of, on the average since the start", _MODEL),
    "longest_sequence_tokens": ("Most tokens that a prompt and its answer had together", _MODEL),
    "model_waiting_requests": ("Requests that wait for the model to be loaded", _MODEL),
    "model_planned_bytes": ("Memory that the model takes by plan; 0 if it is not loaded", _MODEL),
    "replica_ready": ("1 if this engine of several can answer now", _REPLICA),
    "replica_requests_running": ("Requests that it computes", _REPLICA),
    "replica_requests_waiting": ("Requests that wait for their turn there", _REPLICA),
    "replica_kv_used_tokens": ("KV of its running requests, in tokens", _REPLICA),
    "replica_kv_retained_tokens": ("KV of its finished conversations, in tokens", _REPLICA),
    "replica_kv_capacity_tokens": ("What its KV pool can hold, in tokens", _REPLICA),
    "replica_stalled_seconds": ("How long its work has waited for a step, by its newest sign of life", _REPLICA),
}
_COUNTERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "engine_restarts": ("How often the engine process was started again", _MODEL),
    "replica_restarts": ("How often the process of this engine of several was started again", _REPLICA),
    "steps": ("Steps of the engine", _MODEL),
    "drafts": ("How often tokens were guessed ahead for a request", _MODEL),
    "drafted_tokens": ("Tokens that were guessed ahead", _MODEL),
    "accepted_drafted_tokens": ("Those of them that came out", _MODEL),
    "preemptions": ("Requests that had to give their place back for a while", _MODEL),
    "prompt_tokens": ("Tokens of prompts, cached ones too", ("model", "key")),
    "cached_tokens": ("Prompt tokens that were not computed", ("model", "key")),
    "completion_tokens": ("Tokens written", ("model", "key")),
    "reasoning_tokens": ("Tokens of reasoning in answers that came to their end", ("model", "key")),
    "constrained_requests": ("Accepted requests whose answers follow a grammar, by its kind", ("model", "kind")),
    "tool_calls": ("Tool calls in answers, complete or cut off", ("model", "end")),
    "adapter_completion_tokens": ("Tokens written with an adapter", ("model", "adapter")),
    "computed_prompt_tokens": ("Prompt tokens that were computed", _MODEL),
    "prefix_queries_tokens": ("Prompt tokens that were looked for in the cache", _MODEL),
    "tier_queries_tokens": ("Those that were not found in the pool, and looked for in the tiers behind it", _MODEL),
    "prefix_hits_tokens": ("Prompt tokens that were found there", ("model", "tier")),
    "kv_evicted": ("KV that had to make room: tokens of the pool, blocks of the tiers", ("model", "tier")),
    "kv_transfer_seconds": (
        "Seconds that KV took to be exported, restored, read from disk and written to it",
        _TRANSFER,
    ),
    "kv_transfer_tokens": ("Tokens whose KV was exported or restored", _TRANSFER),
    "kv_transfer_bytes": ("Bytes of KV read from disk and written to it", _TRANSFER),
    "kv_read_ahead_blocks": ("Blocks read from disk before anybody asked for them, after the start", _MODEL),
    "kv_evicted_sequences": ("Finished conversations that have left the pool wholly", _MODEL),
    "requests": ("Requests that have ended; `abort` = the client has left", ("model", "key", "finish_reason")),
    "embedding_requests": ("Requests for embeddings or ranks that have ended, and how", ("model", "key", "end")),
    "embedding_tokens": ("Tokens that were embedded or ranked", ("model", "key")),
    "refusals": ("Requests that were not accepted, by the error's code", ("model", "code")),
    "failures": ("Requests that ended with an error after they had been accepted", ("model", "code")),
    "prefill_busy_seconds": ("Seconds that requests spent computing prompts", _MODEL),
    "decode_busy_seconds": ("Seconds that requests spent between their first and their last token", _MODEL),
    "model_loads": ("How often the model was loaded", _MODEL),
    "model_unloads": ("How often the model was unloaded, and why", ("model", "reason")),
}
_HISTOGRAMS: Mapping[str, str] = {
    "time_to_first_token_seconds": "From the submission of a request to its first token",
    "inter_token_seconds": "Between two tokens of a request",
    "request_seconds": "From the submission of a request to its last token",
    "request_prompt_tokens": "Tokens of a request's prompt",
    "request_completion_tokens": "Tokens that were written for a request",
    "request_computed_prompt_tokens": "Tokens of a request's prompt that were computed",
    "request_max_tokens": "Most tokens that a request asked for, if it said so",
    "request_n": "How many answers to one prompt were asked for",
    "request_longest_completion_tokens": "Tokens of the longest answer to one prompt",
    "request_token_seconds": "Between two tokens of a request, on the average over it",
    "decode_seconds": "From the first token of a request to its last",
    "queue_seconds": "From the arrival of a request to the first step that computes a part of it",
    "prefill_seconds": "From that step to the first token",
    "running_seconds": "From that step to the last token",
    "step_seconds": "One step of the engine",
    "step_tokens": "Tokens that one step computes, of prompts and of answers",
    "embedding_seconds": "A whole request for embeddings or ranks",
}
PREFIX = "stoker_"


_NOT_LOADED = Health(is_ready=False, state="unloaded")


def families(models: Iterable[ModelStatus]) -> list[Metric]:
    """Everything that is known now about these models; families without a value are there too."""
    found = _empty()
    for status in models:
        model = status.model_id
        health = status.served.runtime.health() if status.served is not None else _NOT_LOADED
        _add_health(found, model, health)
        _add_replicas(found, model, health)
        if health.heartbeat is not None:
            _add_heartbeat(found, model, health.heartbeat)
        _add_requests(found, model, status.metrics)
        _add_residency(found, status)
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


def _add_replicas(found: _Families, model: str, health: Health) -> None:
    for number, replica in health.replicas.items():
        values: dict[str, float] = {"ready": float(replica.is_ready), "restarts": replica.num_restarts}
        if (beat := replica.heartbeat) is not None:
            values |= {
                "requests_running": beat.num_running,
                "requests_waiting": beat.num_waiting,
                "kv_used_tokens": beat.kv_used,
                "kv_retained_tokens": beat.kv_retained,
                "kv_capacity_tokens": beat.kv_capacity,
                "stalled_seconds": beat.stalled_s,
            }
        for name, value in values.items():
            _add(found, f"replica_{name}", value, model, str(number))


def _add_heartbeat(found: _Families, model: str, beat: EngineStats) -> None:
    tiers = beat.tiers
    values: dict[str, float] = {
        "requests_running": beat.num_running,
        "requests_waiting": beat.num_waiting,
        "requests_paused": beat.num_paused,
        "kv_used_tokens": beat.kv_used,
        "kv_retained_tokens": beat.kv_retained,
        "kv_capacity_tokens": beat.kv_capacity,
        "kv_sequences": beat.kv_sequences,
        "kv_held_bytes": beat.kv_held_bytes,
        "kv_capacity_bytes": beat.kv_capacity_bytes,
        "state_held_bytes": beat.state_held_bytes,
        "kv_evicted_sequences": beat.pool_evicted_sequences,
        "kv_usage_ratio": beat.kv_used / beat.kv_capacity if beat.kv_capacity else 0.0,
        "steps": beat.num_steps,
        "preemptions": beat.num_preemptions,
        "requests_per_step": _rate(beat.num_step_sequences, beat.step_tokens.num_values),
        "prefix_queries_tokens": beat.prompt_tokens,
        "tier_queries_tokens": beat.prompt_tokens - beat.pool_hit_tokens if _has_tiers(tiers) else 0,
        "computed_prompt_tokens": beat.prompt_tokens - beat.cached_tokens,
        "prefill_busy_seconds": beat.prefill_s.total,
        "prompt_tokens_per_second": _rate(beat.prompt_tokens - beat.cached_tokens, beat.prefill_s.total),
    }
    if beat.num_steps:  # else it is a llama-server's, which does not say
        values |= {
            "drafts": beat.num_drafts,
            "drafted_tokens": beat.drafted_tokens,
            "accepted_drafted_tokens": beat.accepted_tokens,
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
    _add_transfers(found, model, tiers)
    for adapter in beat.adapters:
        _add(found, "adapter_requests_running", adapter.num_running, model, adapter.name)
        _add(found, "adapter_requests_waiting", adapter.num_waiting, model, adapter.name)
        _add(found, "adapter_completion_tokens", adapter.num_tokens, model, adapter.name)
    _add_distribution(found, "queue_seconds", model, PHASE_BOUNDS, beat.queue_s)
    _add_distribution(found, "prefill_seconds", model, PHASE_BOUNDS, beat.prefill_s)
    _add_distribution(found, "running_seconds", model, PHASE_BOUNDS, beat.running_s)
    _add_distribution(found, "step_seconds", model, STEP_BOUNDS, beat.step_s)
    _add_distribution(found, "step_tokens", model, STEP_TOKEN_BOUNDS, beat.step_tokens)


def _add_transfers(found: _Families, model: str, tiers: TierCounters) -> None:
    seconds = {
        "export": tiers.export_s,
        "restore": tiers.restore_s,
        "disk_read": tiers.disk_read_s,
        "disk_write": tiers.disk_write_s,
    }
    tokens = {"export": tiers.exported_tokens, "restore": tiers.restored_tokens}
    sizes = {"disk_read": tiers.disk_read_bytes, "disk_write": tiers.disk_written_bytes}
    for unit, values in (("seconds", seconds), ("tokens", tokens), ("bytes", sizes)):
        for transfer, value in values.items():
            _add(found, f"kv_transfer_{unit}", value, model, transfer)
    _add(found, "kv_read_ahead_blocks", tiers.disk_read_ahead_blocks, model)


def _add_residency(found: _Families, status: ModelStatus) -> None:
    _add(found, "model_waiting_requests", status.num_waiting, status.model_id)
    _add(found, "model_planned_bytes", 0 if status.plan is None else status.plan.total_bytes, status.model_id)
    _add(found, "model_loads", status.num_loads, status.model_id)
    for reason, count in status.unloads.items():
        _add(found, "model_unloads", count, status.model_id, reason)


def _add_requests(found: _Families, model: str, metrics: RequestMetrics) -> None:
    _add(found, "requests_open", metrics.num_open, model)
    _add(found, "longest_sequence_tokens", metrics.longest_sequence, model)
    decode_s, num_later = metrics.decode_s.snapshot().total, metrics.num_later_tokens
    _add(found, "decode_busy_seconds", decode_s, model)
    _add(found, "completion_tokens_per_second", _rate(num_later, decode_s), model)
    for (key, reason), count in metrics.ends.items():
        _add(found, "requests", count, model, key, reason)
    for (key, end), count in metrics.embedding_ends.items():
        _add(found, "embedding_requests", count, model, key, end)
    by_key = {
        "prompt_tokens": metrics.prompt_tokens,
        "cached_tokens": metrics.cached_tokens,
        "completion_tokens": metrics.completion_tokens,
        "embedding_tokens": metrics.embedding_tokens,
        "reasoning_tokens": metrics.reasoning_tokens,
        "constrained_requests": metrics.constrained,
        "tool_calls": metrics.tool_calls,
    }
    for name, counts in {**by_key, "refusals": metrics.refusals, "failures": metrics.failures}.items():
        for label, count in counts.items():
            _add(found, name, count, model, label)
    for name, histogram in {
        "time_to_first_token_seconds": metrics.ttft_s,
        "inter_token_seconds": metrics.token_s,
        "request_seconds": metrics.request_s,
        "request_prompt_tokens": metrics.request_prompt,
        "request_computed_prompt_tokens": metrics.request_computed,
        "request_completion_tokens": metrics.request_completion,
        "request_max_tokens": metrics.request_max_tokens,
        "request_n": metrics.group_n,
        "request_longest_completion_tokens": metrics.group_longest,
        "request_token_seconds": metrics.request_token_s,
        "decode_seconds": metrics.decode_s,
        "embedding_seconds": metrics.embedding_s,
    }.items():
        _add_histogram(found, name, model, histogram)


def _has_tiers(tiers: TierCounters) -> bool:
    return tiers.ram_limit_bytes > 0 or tiers.disk_limit_bytes > 0


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
