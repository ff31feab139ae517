"""How long a request and how large a KV pool an ONNX model gets. Nothing is allocated here."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.errors import ConfigError
from stoker.models.memory_plan import MemoryNeeds, check_context
from stoker.models.onnx_description import Hints

_DEFAULT_CONTEXT = 8192
_UNKNOWN_CONTEXT = 2048
_ACTIVATION_BYTES = 64 << 20
"""Of one step, without logits: an estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxSizes:
    """What is known of a graph before it is loaded."""

    model: str
    """For messages."""
    trained_context: int | None
    weights_bytes: int
    kv_bytes_per_token: int
    logits_bytes: int
    """Of the largest run."""


def onnx_needs(
    sizes: OnnxSizes,
    hints: Hints,
    *,
    ctx_size: int | None,
    kv_tokens: int | None,
    parallel: int,
    spare_kv_tokens: int,
    num_replicas: int = 1,
) -> MemoryNeeds:
    """What a model takes: what the user says, over what `metadata.json` says, over what suits most.

    Args:
        sizes: of the graph.
        hints: of its folder. `max_sequence_tokens` is a limit: it holds for what the model was trained with, too.
        ctx_size: longest single request in tokens, if the user says.
        kv_tokens: size of the pool, if the user says.
        parallel: most requests that run at the same time.
        spare_kv_tokens: what the backend needs beyond the pool, in tokens.
        num_replicas: engines that share the weights.

    Raises:
        ConfigError: a size below 1, or a context beyond all sense.
    """
    for name, size in (("--ctx-size", ctx_size), ("--kv-tokens", kv_tokens), ("--parallel", parallel)):
        if size is not None and size < 1:
            raise ConfigError(f"{name} must be at least 1, not {size}")
    check_context(sizes.model, ctx_size, sizes.trained_context)
    pool = kv_tokens or hints.kv_tokens
    return MemoryNeeds(
        model=sizes.model,
        ctx_size=ctx_size or _context(sizes, hints, pool),
        kv_tokens=pool,
        parallel=parallel,
        spare_kv_tokens=spare_kv_tokens,
        weights_bytes=sizes.weights_bytes,
        kv_bytes_per_token=sizes.kv_bytes_per_token,
        compute_bytes=sizes.logits_bytes + _ACTIVATION_BYTES,
        num_replicas=num_replicas,
    )


def encoder_needs(model: str, weights_bytes: int, max_tokens: int) -> MemoryNeeds:
    """What an encoder takes: it has no KV.

    Args:
        model: for messages.
        weights_bytes: of its graph.
        max_tokens: longest text.
    """
    return MemoryNeeds(
        model=model,
        ctx_size=max_tokens,
        kv_tokens=None,
        parallel=1,
        spare_kv_tokens=0,
        weights_bytes=weights_bytes,
        kv_bytes_per_token=0,
        compute_bytes=_ACTIVATION_BYTES,
    )


def _context(sizes: OnnxSizes, hints: Hints, pool: int | None) -> int:
    limits = (hints.max_sequence_tokens, sizes.trained_context, pool)
    usual = _DEFAULT_CONTEXT if sizes.trained_context or hints.max_sequence_tokens else _UNKNOWN_CONTEXT
    return min([usual, *(limit for limit in limits if limit is not None)])
