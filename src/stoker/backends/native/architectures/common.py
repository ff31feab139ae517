"""The common parts of decoders. What is special about an architecture is in the module of its family."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import floor, log2, sqrt
from typing import Any, TypeAlias

from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import HeadNorms, RopePairs
from stoker.backends.native.layer_parts import Linear
from stoker.backends.native.rope import Rope, RopeScaling, scaled_rope
from stoker.backends.native.spec import Activation, DecoderSpec, Heads, Layer

Make: TypeAlias = Callable[[Hyperparameters, int], Layer]
"""Makes a layer from its index."""

WITHOUT_FEED_FORWARD: dict[str, Any] = dict.fromkeys(("feed_forward_norm", "gate", "up", "down"))
"""Fields of `Layer` that a layer without a feed-forward lacks."""

DIVISORS = "rope_freqs.weight"
"""Tensor with divisors of RoPE frequencies: Llama 3, and models that adopted its RoPE scaling."""
SHORT_DIVISORS, LONG_DIVISORS = "rope_factors_short.weight", "rope_factors_long.weight"
"""Tensors with the divisors of LongRoPE."""

_MAX_SCALE = 1e6
_MAX_SLOPE_BITS = 8.0
"""The smallest ALiBi slope is 2^-8 per position."""
_BETAS = {"rope.scaling.yarn_beta_fast": 32.0, "rope.scaling.yarn_beta_slow": 1.0}


def decoder(model: Hyperparameters, *, ropes: tuple[Rope, ...], layers: tuple[Layer, ...], **more: Any) -> DecoderSpec:
    """A decoder; by default with SiLU, scores scaled by the head size, and an output head if the file has one.

    Args:
        model: the file.
        ropes: rotations; `Layer.rope` is an index into them.
        layers: first to last.
        more: fields of `DecoderSpec` that differ from the defaults.

    Raises:
        ModelUnsupported: no layer has attention or a recurrence; or the file asks for bidirectional attention, and a
            layer has a window or a recurrence.
    """
    if all(layer.heads is None and layer.recurrence is None for layer in layers):
        model.refuse("no layer has attention, or a state in its place")
    if not model.flag("attention.causal", default=True) and not more.get("sees_ahead"):
        if any(layer.window or layer.recurrence for layer in layers):
            model.refuse("it has layers that do not see ahead")
        more["sees_ahead"] = True
    embedding = Linear(weight="token_embd.weight", num_rows=model.vocab_size, num_columns=model.hidden_size)
    head = model.linear("output", model.vocab_size, model.hidden_size)
    defaults: dict[str, Any] = {
        "activation": Activation.SILU,
        "attention_scale": 1 / sqrt(model.head_size),
        "norm_eps": model.norm_eps,
        "output_norm": model.norm("output_norm"),
        "head": head if model.has(head.weight) else embedding,
    }
    return DecoderSpec(
        architecture=model.architecture,
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        embedding=embedding,
        ropes=ropes,
        layers=layers,
        trained_context=model.trained_context,
        **defaults | more | {"unused": model.tensors_of_further_layers() | more.get("unused", frozenset())},
    )


def scaled_decoder(
    model: Hyperparameters, *, embedding_scale: float, residual_scale: float, logit_divisor: float, **more: Any
) -> DecoderSpec:
    """A `decoder` in which everything that a layer adds is multiplied by `residual_scale`.

    Equivalently, the residual stream is stored divided by it. Only norms read the stream, and they normalize its
    length; their epsilon is divided by the square.

    Args:
        model: the file.
        embedding_scale: factor of the embedding.
        residual_scale: factor of the outputs of attention and feed-forward.
        logit_divisor: divisor of the logits.
        more: see `decoder`.

    Raises:
        ModelFileInvalid: a scale is not between 1e-6 and 1e6.
    """
    for scale in (embedding_scale, residual_scale, logit_divisor):
        if not 1 / _MAX_SCALE <= scale <= _MAX_SCALE:
            model.fail(f"a scale of {scale} makes no sense")
    return decoder(
        model,
        embedding_scale=embedding_scale / residual_scale,
        input_scale=embedding_scale / residual_scale,
        norm_eps=model.norm_eps / residual_scale**2,
        output_norm=model.norm("output_norm", scale=1 / logit_divisor),
        **more,
    )


def rope(
    model: Hyperparameters,
    pairs: RopePairs,
    *,
    dim: int | None = None,
    divisors: str = "",
    base: float | None = None,
    scaling: RopeScaling | None = None,
) -> Rope:
    """The RoPE that the file describes.

    Args:
        model: the file.
        pairs: which elements of a head are rotated together.
        dim: number of rotated elements of a head, if it differs between layers.
        divisors: name of the tensor with divisors of the frequencies, which the file may lack.
        base: base to use instead of the file's.
        scaling: scaling to use instead of the file's.
    """
    return scaled_rope(
        pairs=pairs,
        dim=dim or model.rope_dim(),
        base=model.rope_base() if base is None else base,
        scaling=model.rope_scaling() if scaling is None else scaling,
        divisors=model.rope_divisors(divisors, dim) if divisors else None,
    )


def long_rope(model: Hyperparameters, pairs: RopePairs, *, dim: int | None = None) -> Rope:
    """The RoPE of a model with LongRoPE: one set of divisors up to the original context, another for longer ones."""
    is_long = model.context_size > model.rope_scaling().original_context
    return rope(model, pairs, dim=dim, divisors=LONG_DIVISORS if is_long else SHORT_DIVISORS)


def check_betas(model: Hyperparameters) -> None:
    """Refuses a file with unusual `beta_fast` or `beta_slow` of YaRN, the bounds of the stretched frequencies.

    Raises:
        ModelUnsupported: one of them is not the usual one.
    """
    for suffix, usual in _BETAS.items():
        if model.number(suffix, usual) != usual:
            model.refuse(f"its `{suffix}` is not {usual}")


def plain_scaling(model: Hyperparameters) -> RopeScaling:
    """The RoPE scaling of layers whose context is not stretched, whatever the scaling of other layers."""
    return RopeScaling(original_context=model.rope_scaling().original_context)


def sectioned_rope(model: Hyperparameters, *, is_interleaved: bool, base: float | None = None) -> Rope:
    """M-RoPE of a vision model: sections of the pairs are rotated by positions along three axes (time, row, column).

    Args:
        model: the file.
        is_interleaved: pairs of the three axes alternate, as far as their sections go; otherwise one section follows
            the other.
        base: base to use instead of the file's.
    """
    *sections, fourth = model.sections("rope.dimension_sections", 4)
    if fourth:
        model.refuse("it rotates along four axes")
    plain = rope(model, RopePairs.HALVES, base=base)
    pairs = range(plain.dim // 2)
    if is_interleaved:
        axes = [axis if pair < 3 * sections[axis] else 0 for pair, axis in ((pair, pair % 3) for pair in pairs)]
    else:
        in_turn = [axis for axis, count in enumerate(sections) for _ in range(count)] or [0]
        axes = [in_turn[pair % len(in_turn)] for pair in pairs]
    return replace(plain, axes=tuple(axes))


def layer(model: Hyperparameters, index: int, **more: Any) -> Layer:
    """A layer with norms before attention and feed-forward, whose matrices may be fused.

    Args:
        model: the file.
        index: index of the layer.
        more: further fields of `Layer`, or other values than the defaults.

    Raises:
        ModelFileInvalid: the layer has no heads of keys and values, and no recurrence.
        ModelUnsupported: the model has experts, and `more` does not describe them.
    """
    if model.num_experts and "experts" not in more:
        model.refuse("it is a mixture of experts")
    block = f"blk.{index}"
    hidden, inner = model.hidden_size, model.feed_forward_sizes[index]
    if not inner and "down" not in more:
        model.fail(f"layer {index} has a feed-forward of size 0")
    gate, up = gate_and_up(model, block, inner)
    defaults: dict[str, Any] = {
        "attention_norm": model.norm(f"{block}.attn_norm"),
        "feed_forward_norm": model.norm(f"{block}.ffn_norm"),
        "gate": gate,
        "up": up,
        "down": model.linear(f"{block}.ffn_down", hidden, inner),
    }
    attention = {} if "recurrence" in more else _attention(model, index)
    return Layer(**attention | defaults | more)


def layer_without_gate(model: Hyperparameters, index: int, **more: Any) -> Layer:
    """A `layer` with a feed-forward without gate: a matrix, an activation, a matrix; `up` and `down` in the file."""
    only = model.linear(f"blk.{index}.ffn_up", model.feed_forward_sizes[index], model.hidden_size)
    return layer(model, index, gate=only, up=None, **more)


def head_norms(model: Hyperparameters, index: int, kind: HeadNorms = HeadNorms.BEFORE_ROPE) -> dict[str, Any]:
    """The norms of queries and keys (QK norm), as fields of `Layer`."""
    block, heads = f"blk.{index}", model.heads[index]
    num, num_kv = (heads.num, heads.num_kv) if kind is HeadNorms.WHOLE_ROW else (1, 1)
    return {
        "head_norms": kind,
        "query_norm": model.norm(f"{block}.attn_q_norm", num * heads.size),
        "key_norm": model.norm(f"{block}.attn_k_norm", num_kv * heads.size),
    }


def layer_with_head_norms(model: Hyperparameters, index: int, **more: Any) -> Layer:
    """A layer whose queries and keys have a norm over each head."""
    return layer(model, index, **head_norms(model, index), **more)


def layer_between_norms(model: Hyperparameters, index: int, **more: Any) -> Layer:
    """A layer with norms both before and after attention and feed-forward."""
    return layer(model, index, **post_norms(model, index), **more)


def post_norms(model: Hyperparameters, index: int) -> dict[str, Any]:
    """The norms after attention and feed-forward, as fields of `Layer`."""
    block = f"blk.{index}"
    return {
        "post_attention_norm": model.norm(f"{block}.post_attention_norm"),
        "post_feed_forward_norm": model.norm(f"{block}.post_ffw_norm"),
    }


def layers(model: Hyperparameters, make: Callable[..., Layer] = layer, *each: Sequence[Any]) -> tuple[Layer, ...]:
    """All layers; `make` makes each from its index and the layer's value in each sequence of `each`."""
    return tuple(make(model, *values) for values in zip(range(model.num_layers), *each, strict=True))


def windowed_layers(model: Hyperparameters, period: int) -> list[bool]:
    """Whether each layer has the sliding window: as the file lists it, or all but every `period`-th; 0 = all.

    Args:
        model: the file.
        period: used if the file has none.
    """
    listed = model.flags_of_layers("attention.sliding_window_pattern")
    if listed is not None:
        return listed
    period = model.integer("attention.sliding_window_pattern", period, low=0)
    return [period == 0 or bool((index + 1) % period) for index in range(model.num_layers)]


def windows(model: Hyperparameters, period: int, usual: int | None = None) -> list[int | None]:
    """The sliding window of each layer, in tokens; None = the layer has full attention.

    Args:
        model: the file.
        period: see `windowed_layers`.
        usual: the window if the file does not give its size; 0 = no layer has one, None = a missing size is an error.
    """
    is_windowed = windowed_layers(model, period)
    if not any(is_windowed):
        return [None] * model.num_layers
    window = model.integer("attention.sliding_window", usual, low=0 if usual == 0 else 1, high=2**31 - 1)
    return [window if window and flag else None for flag in is_windowed]


def plain_decoder(
    model: Hyperparameters, rotation: RopePairs | Rope, make: Make = layer, *, divisors: str = "", **more: Any
) -> DecoderSpec:
    """A `decoder` with one RoPE for all layers, which are all made by `make`.

    Args:
        model: the file.
        rotation: the RoPE, or which elements of a head are rotated together in the RoPE that the file describes.
        make: makes a layer from its index.
        divisors: see `rope`; a given `Rope` already includes them.
        more: see `decoder`.
    """
    if not isinstance(rotation, Rope):
        rotation = rope(model, rotation, divisors=divisors)
    unused = frozenset({divisors} if divisors else ())
    return decoder(model, ropes=(rotation,), layers=layers(model, make), unused=unused, **more)


def _attention(model: Hyperparameters, index: int) -> dict[str, Any]:
    block, heads = f"blk.{index}", model.heads[index]
    if not heads.num or not heads.num_kv:
        model.fail(f"layer {index} has no heads of keys and values")
    query, key, value = query_key_value(model, block, heads)
    output = model.linear(f"{block}.attn_output", model.hidden_size, heads.num * heads.size)
    return {"heads": heads, "query": query, "key": key, "value": value, "output": output}


def query_key_value(model: Hyperparameters, block: str, of: Heads) -> tuple[Linear, Linear, Linear]:
    """The matrices of queries, keys and values of these heads, which may be fused in the file:

    ```
    blk.0.attn_qkv:  [ rows of queries | rows of keys | rows of values ]
    ```
    """
    hidden, heads, kv_heads = model.hidden_size, *(n * of.size for n in (of.num, of.num_kv))
    fused = f"{block}.attn_qkv"
    if model.has(f"{fused}.weight"):
        return (
            model.linear(fused, heads, hidden),
            model.linear(fused, kv_heads, hidden, first_row=heads),
            model.linear(fused, kv_heads, hidden, first_row=heads + kv_heads),
        )
    return (
        model.linear(f"{block}.attn_q", heads, hidden),
        model.linear(f"{block}.attn_k", kv_heads, hidden),
        model.linear(f"{block}.attn_v", kv_heads, hidden),
    )


def distance_slopes(num_heads: int) -> tuple[float, ...]:
    """The ALiBi slopes: a geometric sequence for the largest power of two of heads, and values between for the rest."""
    power = 2 ** floor(log2(num_heads))
    first = [2 ** (-_MAX_SLOPE_BITS * (head + 1) / power) for head in range(power)]
    between = [2 ** (-_MAX_SLOPE_BITS / 2 * (2 * head + 1) / power) for head in range(num_heads - power)]
    return (*first, *between)


def gate_and_up(model: Hyperparameters, block: str, size: int, suffix: str = "") -> tuple[Linear, Linear]:
    """The gate and up matrices of a feed-forward of this size; their names end with `suffix`. They may be fused:

    ```
    blk.0.ffn_up without blk.0.ffn_gate:  [ rows of gate | rows of up ]
    ```
    """
    hidden = model.hidden_size
    up, gate = f"{block}.ffn_up{suffix}", f"{block}.ffn_gate{suffix}"
    if model.has(f"{gate}.weight"):
        return model.linear(gate, size, hidden), model.linear(up, size, hidden)
    return model.linear(up, size, hidden), model.linear(up, size, hidden, first_row=size)
