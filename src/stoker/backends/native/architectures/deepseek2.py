"""deepseek2: DeepSeek V2 and V3, GLM 4.7 Flash, Moonlight. Keys and values are one latent vector of each position; the
first layers are dense, the others have experts beside a shared block.
"""

from __future__ import annotations

from dataclasses import replace
from math import log
from typing import Any

from stoker.backends.native.architectures.common import check_betas, decoder, layers, rope
from stoker.backends.native.architectures.draft_head import with_draft_head
from stoker.backends.native.architectures.experts import chosen_as_said, layer_behind_dense, size_of_shared
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs, Routing
from stoker.backends.native.layer_parts import Latent, Linear
from stoker.backends.native.rope import RopeScaling
from stoker.backends.native.spec import DecoderSpec, Layer

_LAYERS_OF_FLASH, _VOCAB_OF_FLASH = (47, 48), 154880
"""Of GLM 4.7 Flash, old files of which do not say that sigmoids route."""


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`. Old files, whose keys and values are not prepared for a latent vector, are refused."""
    if model.optional_number("attention.temperature_scale") is not None:
        model.refuse("its queries grow with their position")
    scaling = _scaling(model)
    _, _, rotated = _sizes(model)
    spec = decoder(
        model,
        architecture="deepseek2",
        attention_scale=_scale(model, model.rope_scaling()),
        ropes=(rope(model, RopePairs.ADJACENT, dim=rotated, scaling=scaling),),
        layers=layers(model, _layer),
    )
    return with_draft_head(model, spec, _layer)


def _sizes(model: Hyperparameters) -> tuple[int, int, int]:
    """Of the latent vector, and of a head's query: what is not rotated, and what is.

    Raises:
        ModelUnsupported: the file is an old one, or sizes are none that kernels can.
        ModelFileInvalid: sizes contradict one another.
    """
    size, query = model.integer("attention.kv_lora_rank"), model.integer("attention.key_length_mla", 0, low=0)
    rotated = model.integer("rope.dimension_count")
    if not query:
        model.refuse("its keys and values are not prepared for a latent vector, as in files before April 2025")
    if model.head_size != size + rotated or query <= rotated or model.heads[0].num_kv != 1:
        model.fail(f"a key of {model.head_size} elements cannot be {size} latent ones and {rotated} that are rotated")
    if size % 32 or rotated % 16 or (query - rotated) % 32:
        model.refuse(f"latent vectors of {size} with heads of {query - rotated} and {rotated} elements")
    return size, query - rotated, rotated


def _scaling(model: Hyperparameters) -> RopeScaling:
    """A file that has the multiplier scales scores, not sine and cosine."""
    check_betas(model)
    scaling = model.rope_scaling()
    if not scaling.is_yarn and scaling.factor != 1:
        model.refuse("its context is stretched, but not by YaRN")
    if not _multiplier(model) or scaling.factor <= 1:
        return scaling
    return replace(scaling, attention_factor=scaling.attention_factor / (1 + 0.1 * log(scaling.factor)))


def _scale(model: Hyperparameters, scaling: RopeScaling) -> float:
    usual = model.integer("attention.key_length_mla", 0, low=0) ** -0.5
    if not scaling.is_yarn or scaling.factor <= 1:
        return usual
    magnitude = 1 + (_multiplier(model) or 0.1) * log(scaling.factor)
    return usual * (scaling.attention_factor * magnitude) ** 2


def _multiplier(model: Hyperparameters) -> float:
    return model.optional_number("rope.scaling.yarn_log_multiplier") or 0.0


def _layer(model: Hyperparameters, index: int) -> Layer:
    is_flash = model.num_layers in _LAYERS_OF_FLASH and model.vocab_size == _VOCAB_OF_FLASH
    return layer_behind_dense(
        model,
        index,
        shared_size=size_of_shared(model),
        routing=chosen_as_said(model, index, Routing.SIGMOID if is_flash else Routing.SOFTMAX),
        **_attention(model, index),
    )


def _attention(model: Hyperparameters, index: int) -> dict[str, Any]:
    """By the names of `Layer`."""
    block, hidden, num = f"blk.{index}", model.hidden_size, model.heads[index].num
    size, plain, rotated = _sizes(model)
    value, rank = model.integer("attention.value_length_mla"), model.integer("attention.q_lora_rank", 0, low=0)
    if value % 16 or num * value % 32 or rank % 32:
        model.refuse(f"{num} heads that give {value} elements, of queries of {rank} numbers")
    all_queries = num * (plain + rotated)
    query, narrow = model.linear(f"{block}.attn_q", all_queries, hidden), None
    if rank:
        query = model.linear(f"{block}.attn_q_a", rank, hidden)
        narrow = model.linear(f"{block}.attn_q_b", all_queries, rank)
    latent = Latent(
        size=size,
        plain=plain,
        rotated=rotated,
        value=value,
        narrow=narrow,
        wide=_of_heads(model, f"{block}.attn_k_b", num, size, plain),
        out=_of_heads(model, f"{block}.attn_v_b", num, value, size),
        query_norm=model.norm(f"{block}.attn_q_a_norm", rank) if rank else None,
        norm=model.norm(f"{block}.attn_kv_a_norm", size),
    )
    return {
        "latent": latent,
        "query": query,
        "key": model.linear(f"{block}.attn_kv_a_mqa", size + rotated, hidden),
        "value": None,
        "output": model.linear(f"{block}.attn_output", hidden, num * value),
    }


def _of_heads(model: Hyperparameters, stem: str, num: int, rows: int, columns: int) -> Linear:
    return replace(model.linear(stem, num * rows, columns), num_stacked=num)
