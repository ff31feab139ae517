"""Qwen 1 to 3 and models of similar form: a llama with NeoX-style RoPE (halves), and biases of queries, keys and values
or norms over heads. Biases are used because they are in the file.
"""

from __future__ import annotations

from math import exp, log1p
from typing import Any

from stoker.backends.native.architectures.common import (
    DIVISORS,
    decoder,
    gate_and_up,
    head_norms,
    layer,
    layer_with_head_norms,
    layer_without_gate,
    layers,
    plain_decoder,
    plain_scaling,
    rope,
    sectioned_rope,
    windows,
)
from stoker.backends.native.architectures.experts import expert_layer
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import Activation, RopePairs
from stoker.backends.native.layer_parts import Xielu
from stoker.backends.native.spec import DecoderSpec, Layer

_MELLUM_PERIOD = 4
_EVERYTHING, _WINDOW = 0, 1
"""Indices into `DecoderSpec.ropes`."""


def describe_qwen(model: Hyperparameters) -> DecoderSpec:
    """Qwen 1. A qwen2 with fused matrices; its feed-forward has half of the size in the file."""

    def make(model: Hyperparameters, index: int) -> Layer:
        block, size = f"blk.{index}", model.feed_forward_sizes[index] // 2
        if not size or size % 32:
            model.refuse(f"a feed-forward of {size} elements (multiples of 32 can)")
        gate, up = gate_and_up(model, block, size)
        return layer(model, index, gate=gate, up=up, down=model.linear(f"{block}.ffn_down", model.hidden_size, size))

    return plain_decoder(model, RopePairs.HALVES, make)


def describe_qwen2(model: Hyperparameters) -> DecoderSpec:
    """Qwen 2 and 2.5. Biases of queries, keys and values."""
    return plain_decoder(model, RopePairs.HALVES)


def describe_pangu_embedded(model: Hyperparameters) -> DecoderSpec:
    """openPangu Embedded. A qwen2 with a bias also in the output matrix of attention."""
    return plain_decoder(model, RopePairs.HALVES)


def describe_seed_oss(model: Hyperparameters) -> DecoderSpec:
    """Seed-OSS. A qwen2 with an explicit head size, and another name for the norm before the feed-forward."""

    def make(model: Hyperparameters, index: int) -> Layer:
        return layer(model, index, feed_forward_norm=model.norm(f"blk.{index}.post_attention_norm"))

    return plain_decoder(model, RopePairs.HALVES, make)


def describe_qwen2moe(model: Hyperparameters) -> DecoderSpec:
    """Qwen 1.5 and 2 with experts. A qwen2 with experts and a gated shared expert; the weights of a row's experts are
    not normalized to a sum of 1.
    """

    def make(model: Hyperparameters, index: int) -> Layer:
        gate = model.linear(f"blk.{index}.ffn_gate_inp_shexp", 1, model.hidden_size)
        shared_size = model.integer("expert_shared_feed_forward_length", model.feed_forward_sizes[index])
        return expert_layer(model, index, shared_size=shared_size, routing={"shared_gate": gate})

    return plain_decoder(model, RopePairs.HALVES, make)


def describe_qwen2vl(model: Hyperparameters) -> DecoderSpec:
    """Qwen 2 VL and 2.5 VL as text models. A qwen2 with M-RoPE, which for text equals RoPE."""
    return plain_decoder(model, sectioned_rope(model, is_interleaved=False))


def describe_paddleocr(model: Hyperparameters) -> DecoderSpec:
    """PaddleOCR VL as a text model. A qwen2vl without biases."""
    return plain_decoder(model, sectioned_rope(model, is_interleaved=False))


def describe_qwen3(model: Hyperparameters) -> DecoderSpec:
    """Qwen 3, dense. Norms over each head of queries and keys, no biases, an explicit head size."""
    return plain_decoder(model, RopePairs.HALVES, layer_with_head_norms)


def describe_qwen3moe(model: Hyperparameters) -> DecoderSpec:
    """Qwen 3 with experts. A qwen3 whose expert weights are normalized to a sum of 1."""
    return plain_decoder(model, RopePairs.HALVES, _normalised_experts)


def _normalised_experts(model: Hyperparameters, index: int, **more: Any) -> Layer:
    """A layer with experts with normalized weights, and norms over heads. Arguments: see `layer`."""
    return expert_layer(model, index, routing={"is_normalised": True}, **head_norms(model, index), **more)


def describe_qwen3vl(model: Hyperparameters) -> DecoderSpec:
    """Qwen 3 VL as a text model. A qwen3 with M-RoPE, which for text equals RoPE. Rows of images have further parts for
    the first layers (DeepStack).
    """
    num_deep = model.integer("n_deepstack_layers", 0, low=0, high=model.num_layers - 1)
    rotation = sectioned_rope(model, is_interleaved=True)
    return plain_decoder(model, rotation, layer_with_head_norms, deep_layers=num_deep)


def describe_qwen3vlmoe(model: Hyperparameters) -> DecoderSpec:
    """Qwen 3 VL with experts as a text model. A qwen3moe with the additions of `describe_qwen3vl`."""
    num_deep = model.integer("n_deepstack_layers", 0, low=0, high=model.num_layers - 1)
    rotation = sectioned_rope(model, is_interleaved=True)
    return plain_decoder(model, rotation, _normalised_experts, deep_layers=num_deep)


def describe_mellum(model: Hyperparameters) -> DecoderSpec:
    """Mellum 2. A qwen3moe with sliding windows in three of four layers; only the others have RoPE scaling."""

    def make(model: Hyperparameters, index: int, window: int | None) -> Layer:
        return _normalised_experts(model, index, rope=_WINDOW if window else _EVERYTHING, window=window)

    ropes = (rope(model, RopePairs.HALVES), rope(model, RopePairs.HALVES, scaling=plain_scaling(model)))
    return decoder(model, ropes=ropes, layers=layers(model, make, windows(model, _MELLUM_PERIOD, 0)))


def describe_apertus(model: Hyperparameters) -> DecoderSpec:
    """Apertus. A qwen3 without feed-forward gates; its activation (xIELU) has parameters for each layer."""
    return plain_decoder(model, RopePairs.HALVES, _apertus_layer, divisors=DIVISORS, activation=Activation.XIELU)


def _apertus_layer(model: Hyperparameters, index: int) -> Layer:
    below, above, slope, end = (
        model.numbers_of_layers(f"xielu.{name}")[index] for name in ("alpha_n", "alpha_p", "beta", "eps")
    )
    xielu = Xielu(below=slope + _softplus(below), above=_softplus(above), slope=slope, end=end)
    return layer_without_gate(model, index, **head_norms(model, index), xielu=xielu)


def _softplus(x: float) -> float:
    return max(x, 0.0) + log1p(exp(-abs(x)))
