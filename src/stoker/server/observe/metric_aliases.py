"""Exposes metrics also under the names of vLLM and llama-server, so that dashboards made for them work.

All metrics that have a meaning here are present with their labels, and those whose value is really 0. Absent are those
that vLLM exposes only on request (lifetimes of blocks, corrupted requests), sleeping engines, reasons for waiting,
cached tokens that were computed again, and drafts by position.

Names and labels are those of `vllm/v1/metrics/loggers.py` and `tools/server/server-task.cpp`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.samples import Sample

from stoker.server.observe.metric_rows import PREFIX

_POOL, _TIERS = frozenset({"pool"}), frozenset({"ram", "disk"})
_ENGINE = {"engine": "0"}
"""Label of vLLM, which numbers its engines. Here, all replicas of a model count as one engine."""
_LABELS = ("model_name", "engine")


@dataclass(frozen=True, slots=True)
class Alias:
    """A further name for a metric family."""

    name: str
    """The further name, without `_total`."""
    of: str
    """Name of Stoker's own family, without its prefix."""
    labels: Mapping[str, str]
    """New name of each of the family's labels that are kept; values are summed over all other labels."""
    extra: Mapping[str, str] = field(default_factory=dict[str, str])
    """Labels with constant values."""
    tiers: frozenset[str] | None = None
    """Cache tiers whose values are included; None = all."""


_VLLM_LABELS = {"model": "model_name"}
_DRAFTS = {
    "spec_decode_num_drafts": "drafts",
    "spec_decode_num_draft_tokens": "drafted_tokens",
    "spec_decode_num_accepted_tokens": "accepted_drafted_tokens",
}
_LLAMA_LABELS = {"model": "model"}
_VLLM = {
    "num_requests_running": "requests_running",
    "num_requests_waiting": "requests_waiting",
    "kv_cache_usage_perc": "kv_usage_ratio",
    "gpu_cache_usage_perc": "kv_usage_ratio",
    "prefix_cache_queries": "prefix_queries_tokens",
    "gpu_prefix_cache_queries": "prefix_queries_tokens",
    "external_prefix_cache_queries": "tier_queries_tokens",
    "num_preemptions": "preemptions",
    "prompt_tokens": "prompt_tokens",
    "prompt_tokens_cached": "cached_tokens",
    "generation_tokens": "completion_tokens",
    "iteration_tokens_total": "step_tokens",
    "time_to_first_token_seconds": "time_to_first_token_seconds",
    "inter_token_latency_seconds": "inter_token_seconds",
    "time_per_output_token_seconds": "inter_token_seconds",
    "request_time_per_output_token_seconds": "request_token_seconds",
    "e2e_request_latency_seconds": "request_seconds",
    "request_queue_time_seconds": "queue_seconds",
    "request_inference_time_seconds": "running_seconds",
    "request_prefill_time_seconds": "prefill_seconds",
    "request_decode_time_seconds": "decode_seconds",
    "request_prompt_tokens": "request_prompt_tokens",
    "request_prefill_kv_computed_tokens": "request_computed_prompt_tokens",
    "request_generation_tokens": "request_completion_tokens",
    "request_max_num_generation_tokens": "request_longest_completion_tokens",
    "request_params_max_tokens": "request_max_tokens",
    "request_params_n": "request_n",
    **_DRAFTS,
}
_VLLM_BY_TIER = {
    "prefix_cache_hits": _POOL,
    "gpu_prefix_cache_hits": _POOL,
    "external_prefix_cache_hits": _TIERS,
}
_VLLM_MEDIA = {
    "mm_cache_queries": "Parts of images and recordings looked for in the cache of encoded rows",
    "mm_cache_hits": "Parts of images and recordings whose encoded rows were found in the cache",
}
_LLAMA = {
    "prompt_tokens": "computed_prompt_tokens",
    "prompt_tokens_cached": "prefix_hits_tokens",
    "prompt_seconds": "prefill_busy_seconds",
    "tokens_predicted": "completion_tokens",
    "tokens_predicted_seconds": "decode_busy_seconds",
    "prompt_tokens_seconds": "prompt_tokens_per_second",
    "predicted_tokens_seconds": "completion_tokens_per_second",
    "n_decode": "steps",
    "n_tokens_max": "longest_sequence_tokens",
    "n_busy_slots_per_decode": "requests_per_step",
    "requests_processing": "requests_running",
    "requests_deferred": "requests_waiting",
    "kv_cache_usage_ratio": "kv_usage_ratio",
    "kv_cache_tokens": "kv_used_tokens",
    **_DRAFTS,
}
ALIASES = (
    *(Alias(f"vllm:{name}", of, _VLLM_LABELS, _ENGINE) for name, of in _VLLM.items()),
    *(
        Alias(f"vllm:{name}", "prefix_hits_tokens", _VLLM_LABELS, _ENGINE, tiers)
        for name, tiers in _VLLM_BY_TIER.items()
    ),
    Alias("vllm:request_success", "requests", {**_VLLM_LABELS, "finish_reason": "finished_reason"}, _ENGINE),
    *(Alias(f"llamacpp:{name}", of, _LLAMA_LABELS) for name, of in _LLAMA.items()),
)


def with_aliases(families: Iterable[Metric]) -> list[Metric]:
    """The metric families, followed by those with the names of vLLM and llama-server."""
    own = {family.name: family for family in families}
    renamed = [_renamed(own[PREFIX + alias.of], alias) for alias in ALIASES]
    sources = _prompt_tokens_by_source(own)
    return [*own.values(), *renamed, sources, _cache_config(own), _adapters(own), *_media_cache(own)]


def _renamed(family: Metric, alias: Alias) -> Metric:
    values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    kept = {**alias.labels, "le": "le"}
    for sample in family.samples:
        if alias.tiers is not None and sample.labels["tier"] not in alias.tiers:
            continue
        labels = tuple((kept[name], value) for name, value in sample.labels.items() if name in kept)
        key = (alias.name + sample.name.removeprefix(family.name), labels)
        values[key] = values.get(key, 0.0) + sample.value
    renamed = Metric(alias.name, family.documentation, family.type)
    for (name, labels), value in values.items():
        renamed.add_sample(name, {**dict(labels), **alias.extra}, value)
    return renamed


def _prompt_tokens_by_source(own: Mapping[str, Metric]) -> Metric:
    family = CounterMetricFamily(
        "vllm:prompt_tokens_by_source", "Prompt tokens, by where their KV came from", labels=(*_LABELS, "source")
    )
    for model, value in _by_model(own["stoker_computed_prompt_tokens"]):
        family.add_metric((model, "0", "local_compute"), value)
    for source, tiers in (("local_cache_hit", _POOL), ("external_kv_transfer", _TIERS)):
        alias = Alias("hits", "prefix_hits_tokens", {"model": "model"}, tiers=tiers)
        for model, value in _by_model(_renamed(own["stoker_prefix_hits_tokens"], alias)):
            family.add_metric((model, "0", source), value)
    return family


def _cache_config(own: Mapping[str, Metric]) -> Metric:
    """vLLM's configuration of the KV cache. Stoker counts KV in tokens, that is, in blocks of one token."""
    names = ("block_size", "num_gpu_blocks")
    family = GaugeMetricFamily("vllm:cache_config_info", "Configuration of the KV pool", labels=(*_LABELS, *names))
    for model, capacity in _by_model(own["stoker_kv_capacity_tokens"]):
        family.add_metric((model, "0", "1", f"{capacity:.0f}"), 1)
    return family


def _adapters(own: Mapping[str, Metric]) -> Metric:
    names = ("max_lora", "waiting_lora_adapters", "running_lora_adapters")
    family = GaugeMetricFamily(
        "vllm:lora_requests_info", "Adapters in use, with the time of this sample", labels=(*_LABELS, *names)
    )
    running, waiting = (own[f"stoker_adapter_requests_{state}"].samples for state in ("running", "waiting"))
    for model in dict.fromkeys(sample.labels["model"] for sample in running):
        loaded = [sample for sample in running if sample.labels["model"] == model]
        in_use = [_names_in_use(samples, model) for samples in (waiting, running)]
        family.add_metric((model, "0", str(len(loaded)), *in_use), time.time())
    return family


def _names_in_use(samples: Iterable[Sample], model: str) -> str:
    return ",".join(s.labels["adapter"] for s in samples if s.labels["model"] == model and s.value)


def _media_cache(own: Mapping[str, Metric]) -> Iterator[Metric]:
    """vLLM's counts of its media cache: 0 for text models; none for llama-server and vLLM, whose steps are unknown."""
    models = [model for model, steps in _by_model(own["stoker_steps"]) if steps]
    hits, encoded = (dict(_by_model(own[f"stoker_encoder_{name}"])) for name in ("hits", "parts"))
    found = {model: hits.get(model, 0.0) for model in models}
    asked = {model: found[model] + encoded.get(model, 0.0) for model in models}
    for (name, text), values in zip(_VLLM_MEDIA.items(), (asked, found), strict=True):
        family = CounterMetricFamily(f"vllm:{name}", text, labels=_LABELS)
        for model, value in values.items():
            family.add_metric((model, "0"), value)
        yield family


def _by_model(family: Metric) -> Iterator[tuple[str, float]]:
    return ((sample.labels["model"], sample.value) for sample in family.samples)
