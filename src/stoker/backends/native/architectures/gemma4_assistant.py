"""gemma4-assistant: a draft head for Gemma 4 (the target) that reads its keys, values and last hidden state."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import sqrt

from stoker.backends.native.architectures.common import DIVISORS, decoder, layer_between_norms, layers, rope
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.layer_parts import Linear
from stoker.backends.native.spec import Activation, DecoderSpec, Join, Layer

_EVERYTHING, _WINDOW = 0, 1
"""Indices into `DecoderSpec.ropes`."""
_SCALE = "layer_output_scale.weight"
_CENTROIDS = frozenset({"masked_embd_centroids.weight", "masked_embd_ordering"})
"""Tensors of some files for computing logits of only a part of the vocabulary; they are not used."""


def describe(model: Hyperparameters, target: DecoderSpec) -> DecoderSpec:
    """See `describe_drafter`.

    ```
    x     = pre_projection(| embedding of the target | its last hidden state |)
    h     = output_norm(x after the layers), logits = token_embd(h)
    state = post_projection(h)                                        for the next draft, at the same position
    ```
    """
    size = model.integer("embedding_length_out")
    if target.architecture != "gemma4" or size != target.hidden_size:
        model.fail(
            f"it drafts for a Gemma 4 with hidden states of {size} numbers, "
            f"not for {target.architecture} with {target.hidden_size}"
        )
    if model.vocab_size != target.vocab_size:
        model.fail(f"it has {model.vocab_size} tokens, and the model has {target.vocab_size}")
    full_dim, window_dim = model.rope_dims()
    window_base = model.rope_base("rope.freq_base_swa", model.rope_base())
    scales = frozenset(f"blk.{index}.{_SCALE}" for index in range(model.num_layers))
    plain = decoder(
        model,
        activation=Activation.GELU_TANH,
        attention_scale=1.0,
        embedding_scale=sqrt(size),
        input_scale=target.input_scale,
        head=Linear(weight="token_embd.weight", num_rows=model.vocab_size, num_columns=model.hidden_size),
        ropes=(
            rope(model, RopePairs.HALVES, dim=full_dim, divisors=DIVISORS),
            rope(model, RopePairs.HALVES, dim=window_dim, base=window_base),
        ),
        layers=layers(model, partial(_layer, target)),
        join=Join(
            hidden_size=size,
            projection=model.linear("nextn.pre_projection", model.hidden_size, 2 * size),
            embedding_norm=None,
            hidden_norm=None,
            give=model.linear("nextn.post_projection", size, model.hidden_size),
        ),
        lent=frozenset({"embedding"}),
        unused=frozenset({DIVISORS}) | scales | _CENTROIDS,
    )
    return replace(plain, embedding=target.embedding)


def _layer(target: DecoderSpec, model: Hyperparameters, index: int) -> Layer:
    block, flags = f"blk.{index}", model.flags_of_layers("attention.sliding_window_pattern")
    if flags is None:
        model.fail("it does not list which layers have a window")
    window = model.integer("attention.sliding_window", low=2, high=2**31 - 1) if flags[index] else None
    lent = _lent_layer(model, target, window)
    lender = target.layers[lent].heads
    heads = model.heads[index]
    if lender is None or heads.size != lender.size or heads.num % lender.num_kv:
        model.fail(f"its {heads.num} heads of {heads.size} in layer {index} do not fit the keys of the model")
    return layer_between_norms(
        model,
        index,
        heads=type(heads)(num=heads.num, num_kv=lender.num_kv, size=heads.size),
        key=None,
        value=None,
        lent_layer=lent,
        query_norm=model.norm(f"{block}.attn_q_norm", heads.size),
        output_scale=model.scalar(f"{block}.{_SCALE}", 1.0),
        rope=_EVERYTHING if window is None else _WINDOW,
        window=window,
    )


def _lent_layer(model: Hyperparameters, target: DecoderSpec, window: int | None) -> int:
    """Index of the target's layer whose keys and values are read: those of the last layer with this window."""
    found = [index for index, layer in enumerate(target.layers) if layer.window == window]
    if not found:
        model.fail("the model has no layer with such a window")
    own = target.layers[found[-1]].kv_layer
    return found[-1] if own is None else own
