"""Whether a well-known model fits into this machine's memory, as far as that can be told before it is downloaded."""

from __future__ import annotations

from stoker.models.library import KnownModel
from stoker.models.memory_plan import MemoryNeeds

_USUAL_CONTEXT = 8192
_COMPUTE_BYTES = 320 << 20
"""Activations and logits of one step: those of a vocabulary of 150,000 tokens."""


def needs_of(model: KnownModel) -> MemoryNeeds:
    """What the model takes with one request of the usual length at a time; when it is loaded, its file says exactly."""
    return MemoryNeeds(
        model=model.name,
        ctx_size=min(model.context, _USUAL_CONTEXT),
        kv_tokens=None,
        parallel=1,
        spare_kv_tokens=0,
        weights_bytes=model.size_bytes,
        kv_bytes_per_token=model.kv_bytes_per_token,
        compute_bytes=min(_COMPUTE_BYTES, model.size_bytes),
    )
