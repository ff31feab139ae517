"""llama4: three of four layers attend within chunks; every fourth has neither chunks nor RoPE, and scales queries by
position; some layers are dense, the others have experts and a shared expert.
"""

from __future__ import annotations

from typing import Any

from stoker.backends.native.architectures.common import DIVISORS, decoder, layer, layers, rope, windowed_layers
from stoker.backends.native.architectures.experts import expert_layer, expert_size
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import HeadNorms, RopePairs, Routing
from stoker.backends.native.rope import no_rope
from stoker.backends.native.spec import DecoderSpec, Layer, QueryScales

_PERIOD = 4
_CHUNK_SIZE = 8192
"""Chunk size of all published models; no file says so."""
_SCALES = QueryScales(slope=0.1, period=8192, offset=1)
_EXPERTS_OF_MAVERICK = 128
"""With this number of experts, queries and keys have no norms."""
_EVERYTHING, _CHUNK, _STANDS = 0, 1, 2
"""Indices into `DecoderSpec.ropes`; `_STANDS`: no rotation."""


def describe_llama4(model: Hyperparameters) -> DecoderSpec:
    """Llama 4 Scout and Maverick as text models. Dense files (MobileLLM) are refused; libllama does not support
    them either.
    """
    if not model.num_experts:
        model.refuse("it has no experts")
    rotates = rope(model, RopePairs.ADJACENT, divisors=DIVISORS)
    chunk_base = model.rope_base("rope.freq_base_swa", model.rope_base())
    chunks = rope(model, RopePairs.ADJACENT, divisors=DIVISORS, base=chunk_base)
    return decoder(
        model,
        attention_scale=model.optional_number("attention.scale") or model.head_size**-0.5,
        query_scales=_SCALES,
        ropes=(rotates, chunks, no_rope(rotates.pairs, rotates.dim)),
        layers=layers(model, _layer),
        unused=frozenset({DIVISORS}),
    )


def _layer(model: Hyperparameters, index: int) -> Layer:
    more = _attention(model, index)
    if (index + 1) % model.integer("interleave_moe_layer_step"):
        return layer(model, index, experts=None, **more)
    routing = {"routing": Routing.SIGMOID_OF_CHOSEN, "weighs_input": True}
    return expert_layer(model, index, shared_size=expert_size(model), routing=routing, **more)


def _attention(model: Hyperparameters, index: int) -> dict[str, Any]:
    """What is special about attention, as fields of `Layer`."""
    is_chunked, rotates = windowed_layers(model, _PERIOD)[index], bool((index + 1) % _PERIOD)
    chunk_size = model.integer("attention.sliding_window", _CHUNK_SIZE, high=2**31 - 1)
    norm = None
    if rotates and model.num_experts != _EXPERTS_OF_MAVERICK:
        norm = model.plain_norm(model.heads[index].size)
    rotation = _CHUNK if is_chunked else _EVERYTHING
    return {
        "query_norm": norm,
        "key_norm": norm,
        "head_norms": HeadNorms.AFTER_ROPE,
        "rope": rotation if rotates else _STANDS,
        "window": chunk_size if is_chunked else None,
        "is_chunked": is_chunked,
        "scales_queries": not rotates,
    }
