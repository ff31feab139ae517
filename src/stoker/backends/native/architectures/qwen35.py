"""qwen35: Qwen 3.5 and 3.6, dense. Gated delta nets, and gated attention in every fourth layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stoker.backends.native.architectures.common import decoder, layer, layer_with_head_norms, layers, sectioned_rope
from stoker.backends.native.architectures.draft_head import with_draft_head
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import Mixer
from stoker.backends.native.layer_parts import Recurrence
from stoker.backends.native.spec import DecoderSpec, Layer

_PERIOD = 4
_MAX_TAPS, _MAX_HEADS = 8, 1 << 16


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    spec = decoder(
        model,
        ropes=(sectioned_rope(model, is_interleaved=True),),
        layers=layers(model, delta_layer),
    )
    return with_draft_head(model, spec, attention_layer)


def delta_layer(model: Hyperparameters, index: int, **more: Any) -> Layer:
    """A layer with a gated delta net, or with attention.

    Args:
        model: the file.
        index: index of the layer.
        more: further fields of `Layer`.
    """
    more = {"feed_forward_norm": model.norm(f"blk.{index}.post_attention_norm"), **more}
    if has_attention(model, index):
        return attention_layer(model, index, **more)
    return layer(model, index, **delta_net(model, index), **more)


def attention_layer(model: Hyperparameters, index: int, **more: Any) -> Layer:
    """A layer with gated attention. Arguments: see `delta_layer`."""
    more = {"feed_forward_norm": model.norm(f"blk.{index}.post_attention_norm"), **more}
    return layer_with_head_norms(model, index, **gated_queries(model, index), **more)


def has_attention(model: Hyperparameters, index: int) -> bool:
    """Whether a layer has attention: as the file lists it, or every `full_attention_interval`-th layer."""
    are_recurrent = model.flags_of_layers("attention.recurrent_layers")
    if are_recurrent is not None:
        return not are_recurrent[index]
    return (index + 1) % model.integer("full_attention_interval", _PERIOD) == 0


def gated_queries(model: Hyperparameters, index: int) -> dict[str, Any]:
    """Queries and their gates, as fields of `Layer`.

    ```
    blk.3.attn_q:  [ rows of query head 0 | of its gate | rows of query head 1 | of its gate | … ]
    ```
    """
    heads, stem = model.heads[index], f"blk.{index}.attn_q"
    query, gate = (
        replace(model.linear(stem, heads.num * heads.size, model.hidden_size, first_row=first), run=heads.size)
        for first in (0, heads.size)
    )
    return {"query": query, "mixed_gate": gate}


def delta_net(model: Hyperparameters, index: int) -> dict[str, Any]:
    """The parts of a gated delta net, as fields of `Layer`.

    ```
    blk.0.attn_qkv:  [ rows of queries | rows of keys | rows of values ]
    ```

    Args:
        model: the file.
        index: index of the layer.

    Raises:
        ModelFileInvalid: sizes contradict one another.
        ModelUnsupported: the matrices are laid out in another way.
    """
    block, hidden = f"blk.{index}", model.hidden_size
    size, num_keys = model.integer("ssm.state_size"), model.integer("ssm.group_count", high=_MAX_HEADS)
    num_heads, values = model.integer("ssm.time_step_rank", high=_MAX_HEADS), model.integer("ssm.inner_size")
    taps = model.integer("ssm.conv_kernel", low=2, high=_MAX_TAPS)
    if values != num_heads * size or num_heads % num_keys or size % 16 or values % 32:
        model.fail(f"a delta net of {values} elements cannot have {num_heads} heads of {size} and {num_keys} of keys")
    if not model.has(f"{block}.attn_qkv.weight") and not model.has(f"{block}.ssm_in.weight"):
        model.refuse("its delta nets have no tensor for queries, keys and values")
    keys = num_keys * size
    recurrence = Recurrence(
        mixer=Mixer.DELTA_NET,
        taps=taps,
        convolution=model.convolution(f"{block}.ssm_conv1d", taps, 2 * keys + values),
        num_heads=num_heads,
        num_key_heads=num_keys,
        key_size=size,
        value_size=size,
        are_interleaved=True,
        decay=model.linear(f"{block}.ssm_alpha", num_heads, hidden),
        beta=model.linear(f"{block}.ssm_beta", num_heads, hidden),
        step_bias=model.vector(f"{block}.ssm_dt.bias", num_heads),
        decay_rate=model.vector(f"{block}.ssm_a", num_heads),
        norm=model.norm(f"{block}.ssm_norm", size),
        norm_size=size,
        norm_eps=model.norm_eps,
    )
    return {
        "heads": None,
        "recurrence": recurrence,
        "query": model.linear(f"{block}.attn_qkv", keys, hidden),
        "key": model.linear(f"{block}.attn_qkv", keys, hidden, first_row=keys),
        "value": model.linear(f"{block}.attn_qkv", values, hidden, first_row=2 * keys),
        "mixed_gate": model.linear(f"{block}.attn_gate", values, hidden),
        "output": model.linear(f"{block}.ssm_out", hidden, values),
    }
