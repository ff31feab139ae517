"""The same numbers under the names of vLLM's and llama-server's metrics, so that dashboards made for them go on.

What is there: all that has the same meaning here. What is not: vLLM's per-iteration and LoRA families, llama-server's
`n_tokens_max`, `n_busy_slots_per_decode` and the speculation counters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.core import Metric

from stoker.server.metrics import PREFIX


@dataclass(frozen=True, slots=True)
class Alias:
    """One more name for a family."""

    name: str
    """Without `_total`."""
    of: str
    """Without the prefix of our own names."""
    labels: Mapping[str, str]
    """Our labels that it keeps -> what they are called there; over all others the values are added up."""


_VLLM_LABELS = {"model": "model_name"}
_LLAMA_LABELS = {"model": "model"}
_VLLM = {
    "num_requests_running": "requests_running",
    "num_requests_waiting": "requests_waiting",
    "kv_cache_usage_perc": "kv_usage_ratio",
    "gpu_cache_usage_perc": "kv_usage_ratio",
    "prefix_cache_queries": "prefix_queries_tokens",
    "prefix_cache_hits": "prefix_hits_tokens",
    "num_preemptions": "preemptions",
    "prompt_tokens": "prompt_tokens",
    "generation_tokens": "completion_tokens",
    "time_to_first_token_seconds": "time_to_first_token_seconds",
    "inter_token_latency_seconds": "inter_token_seconds",
    "time_per_output_token_seconds": "inter_token_seconds",
    "e2e_request_latency_seconds": "request_seconds",
    "request_queue_time_seconds": "queue_seconds",
    "request_prefill_time_seconds": "prefill_seconds",
    "request_decode_time_seconds": "decode_seconds",
    "request_prompt_tokens": "request_prompt_tokens",
    "request_generation_tokens": "request_completion_tokens",
}
_LLAMA = {
    "prompt_tokens": "computed_prompt_tokens",
    "prompt_seconds": "prefill_busy_seconds",
    "tokens_predicted": "completion_tokens",
    "tokens_predicted_seconds": "decode_busy_seconds",
    "prompt_tokens_seconds": "prompt_tokens_per_second",
    "predicted_tokens_seconds": "completion_tokens_per_second",
    "n_decode": "steps",
    "requests_processing": "requests_running",
    "requests_deferred": "requests_waiting",
    "kv_cache_usage_ratio": "kv_usage_ratio",
    "kv_cache_tokens": "kv_used_tokens",
}
ALIASES = (
    *(Alias(f"vllm:{name}", of, _VLLM_LABELS) for name, of in _VLLM.items()),
    Alias("vllm:request_success", "requests", {**_VLLM_LABELS, "finish_reason": "finished_reason"}),
    *(Alias(f"llamacpp:{name}", of, _LLAMA_LABELS) for name, of in _LLAMA.items()),
)


def with_aliases(families: Iterable[Metric]) -> list[Metric]:
    """The families, and after them the same under their other names."""
    own = {family.name: family for family in families}
    return [*own.values(), *(_renamed(own[PREFIX + alias.of], alias) for alias in ALIASES)]


def _renamed(family: Metric, alias: Alias) -> Metric:
    values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for sample in family.samples:
        kept = {**alias.labels, "le": "le"}
        labels = tuple((kept[name], value) for name, value in sample.labels.items() if name in kept)
        key = (alias.name + sample.name.removeprefix(family.name), labels)
        values[key] = values.get(key, 0.0) + sample.value
    renamed = Metric(alias.name, family.documentation, family.type)
    for (name, labels), value in values.items():
        renamed.add_sample(name, dict(labels), value)
    return renamed
