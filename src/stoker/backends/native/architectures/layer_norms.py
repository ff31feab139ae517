"""Decoders whose norms take the mean away and have biases: falcon, gpt2, gptneox, jais2, nemotron, orion, phi2,
stablelm, starcoder, starcoder2. What differs is the feed-forward, what stands side by side, and how positions are told.
"""

from __future__ import annotations

from typing import Any

from stoker.backends.native.architectures.common import Make, layer, layer_without_gate, plain_decoder
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import Activation, NormKind, RopePairs
from stoker.backends.native.rope import Rope, no_rope
from stoker.backends.native.spec import DecoderSpec, Layer


def describe_falcon(model: Hyperparameters) -> DecoderSpec:
    """Falcon 1. The larger models have a norm of its own before attention."""

    def make(model: Hyperparameters, index: int) -> Layer:
        own = f"blk.{index}.attn_norm_2"
        more = {"attention_norm": model.biased_norm(own)} if model.has(f"{own}.weight") else {}
        return _parallel_layer(model, index, **more)

    return _decoder(model, make)


def describe_gpt2(model: Hyperparameters) -> DecoderSpec:
    """GPT-2. A table of positions."""
    return _with_positions(model)


def describe_starcoder(model: Hyperparameters) -> DecoderSpec:
    """StarCoder 1, SantaCoder. A gpt2 whose heads share one of keys and values."""
    return _with_positions(model)


def describe_gptneox(model: Hyperparameters) -> DecoderSpec:
    """GPT-NeoX, Pythia. Side by side with a norm each, if the file says so."""
    is_parallel = model.flag("use_parallel_residual", default=True)

    def make(model: Hyperparameters, index: int) -> Layer:
        return _layer(model, index, is_parallel=is_parallel)

    return _decoder(model, make)


def describe_jais2(model: Hyperparameters) -> DecoderSpec:
    """Jais 2. Squared ReLU."""
    return _decoder(model, _layer, activation=Activation.RELU_SQUARED)


def describe_nemotron(model: Hyperparameters) -> DecoderSpec:
    """Nemotron 4 and Minitron. Squared ReLU."""
    return _decoder(model, _layer, activation=Activation.RELU_SQUARED)


def describe_orion(model: Hyperparameters) -> DecoderSpec:
    """Orion. The feed-forward of a llama."""
    return _decoder(model, _gated_layer, activation=Activation.SILU)


def describe_phi2(model: Hyperparameters) -> DecoderSpec:
    """Phi 1 and 2. Attention and feed-forward side by side, with one norm before both."""
    return _decoder(model, _parallel_layer)


def describe_stablelm(model: Hyperparameters) -> DecoderSpec:
    """StableLM 1 to 2, without the one of 12B, whose heads have norms."""
    return _decoder(model, _gated_layer, activation=Activation.SILU)


def describe_starcoder2(model: Hyperparameters) -> DecoderSpec:
    """StarCoder 2."""
    return _decoder(model, _layer)


def _decoder(
    model: Hyperparameters,
    make: Make,
    rotation: RopePairs | Rope = RopePairs.HALVES,
    activation: Activation = Activation.GELU_TANH_ALONE,
    **more: Any,
) -> DecoderSpec:
    more |= {"norm": NormKind.LAYER_BIASED, "output_norm": model.biased_norm("output_norm")}
    return plain_decoder(model, rotation, make, activation=activation, **more)


def _with_positions(model: Hyperparameters) -> DecoderSpec:
    positions = model.table("position_embd.weight", model.trained_context)
    return _decoder(model, _layer, no_rope(RopePairs.HALVES, 0), positions=positions)


def _norms(model: Hyperparameters, index: int) -> dict[str, Any]:
    """By the names of `Layer`."""
    block = f"blk.{index}"
    return {
        "attention_norm": model.biased_norm(f"{block}.attn_norm"),
        "feed_forward_norm": model.biased_norm(f"{block}.ffn_norm"),
    }


def _shared_norm(model: Hyperparameters, index: int) -> dict[str, Any]:
    shared = model.biased_norm(f"blk.{index}.attn_norm")
    return {"attention_norm": shared, "feed_forward_norm": shared, "is_parallel": True}


def _layer(model: Hyperparameters, index: int, **more: Any) -> Layer:
    return layer_without_gate(model, index, **_norms(model, index) | more)


def _gated_layer(model: Hyperparameters, index: int) -> Layer:
    """With one norm for both where the file has no second one; then they stand side by side."""
    has_both = model.has(f"blk.{index}.ffn_norm.weight")
    return layer(model, index, **(_norms(model, index) if has_both else _shared_norm(model, index)))


def _parallel_layer(model: Hyperparameters, index: int, **more: Any) -> Layer:
    return _layer(model, index, **_shared_norm(model, index) | more)
