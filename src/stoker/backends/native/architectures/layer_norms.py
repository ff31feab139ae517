"""Decoders with layer norms with biases: falcon, gpt2, gptneox, jais2, nemotron, orion, phi2, stablelm, starcoder,
starcoder2. They differ in the feed-forward, in what is computed in parallel, and in position encoding.
"""

from __future__ import annotations

from typing import Any

from stoker.backends.native.architectures.common import Make, layer, layer_without_gate, plain_decoder
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import Activation, NormKind, RopePairs
from stoker.backends.native.rope import Rope, no_rope
from stoker.backends.native.spec import DecoderSpec, Layer


def describe_falcon(model: Hyperparameters) -> DecoderSpec:
    """Falcon 1. In the larger models, attention has a separate norm."""

    def make(model: Hyperparameters, index: int) -> Layer:
        own = f"blk.{index}.attn_norm_2"
        more = {"attention_norm": model.biased_norm(own)} if model.has(f"{own}.weight") else {}
        return _parallel_layer(model, index, **more)

    return _decoder(model, make)


def describe_gpt2(model: Hyperparameters) -> DecoderSpec:
    """GPT-2. Position embeddings (a learned table) in place of RoPE."""
    return _with_positions(model)


def describe_starcoder(model: Hyperparameters) -> DecoderSpec:
    """StarCoder 1, SantaCoder. A gpt2 with one head of keys and values (MQA)."""
    return _with_positions(model)


def describe_gptneox(model: Hyperparameters) -> DecoderSpec:
    """GPT-NeoX, Pythia. Attention and feed-forward have a norm each; they are parallel unless the file forbids it."""
    is_parallel = model.flag("use_parallel_residual", default=True)

    def make(model: Hyperparameters, index: int) -> Layer:
        return _layer(model, index, is_parallel=is_parallel)

    return _decoder(model, make)


def describe_jais2(model: Hyperparameters) -> DecoderSpec:
    """Jais 2. A feed-forward without gate, with squared ReLU."""
    return _decoder(model, _layer, activation=Activation.RELU_SQUARED)


def describe_nemotron(model: Hyperparameters) -> DecoderSpec:
    """Nemotron 4 and Minitron. A feed-forward without gate, with squared ReLU."""
    return _decoder(model, _layer, activation=Activation.RELU_SQUARED)


def describe_orion(model: Hyperparameters) -> DecoderSpec:
    """Orion. A feed-forward with a SiLU gate, as in Llama."""
    return _decoder(model, _gated_layer, activation=Activation.SILU)


def describe_phi2(model: Hyperparameters) -> DecoderSpec:
    """Phi 1 and 2. Attention and feed-forward are parallel, with one norm before both."""
    return _decoder(model, _parallel_layer)


def describe_stablelm(model: Hyperparameters) -> DecoderSpec:
    """StableLM 1 to 2, except StableLM 2 12B. That model is left out because it has norms over heads."""
    return _decoder(model, _gated_layer, activation=Activation.SILU)


def describe_starcoder2(model: Hyperparameters) -> DecoderSpec:
    """StarCoder 2. A feed-forward without gate, with GELU; RoPE on halves (NeoX style)."""
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
    """The norms of a layer, as fields of `Layer`."""
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
    """A layer with a gate. With a single norm in the file, attention and feed-forward are parallel and share it."""
    has_both = model.has(f"blk.{index}.ffn_norm.weight")
    return layer(model, index, **(_norms(model, index) if has_both else _shared_norm(model, index)))


def _parallel_layer(model: Hyperparameters, index: int, **more: Any) -> Layer:
    return _layer(model, index, **_shared_norm(model, index) | more)
