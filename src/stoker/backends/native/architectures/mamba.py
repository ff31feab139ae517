"""Mamba: models in which no layer has attention, and none a feed-forward; and Jamba, where some have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stoker.backends.native.architectures.common import WITHOUT_FEED_FORWARD, layer, plain_decoder
from stoker.backends.native.architectures.experts import expert_layer
from stoker.backends.native.architectures.mamba1 import mamba1
from stoker.backends.native.architectures.mamba2 import mamba2
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.layer_parts import Norm
from stoker.backends.native.rope import no_rope
from stoker.backends.native.spec import DecoderSpec, Layer


def describe_mamba(model: Hyperparameters) -> DecoderSpec:
    """Mamba 1, Falcon Mamba."""
    norm = _plain_norm if model.flag("ssm.dt_b_c_rms", default=False) else None
    return _decoder(model, lambda model, index: mamba1(model, index, norm))


def describe_mamba2(model: Hyperparameters) -> DecoderSpec:
    """Mamba 2, Codestral Mamba."""
    return _decoder(model, mamba2)


def _plain_norm(_: str, size: int) -> Norm:
    return Norm(weight=None, size=size)


def _decoder(model: Hyperparameters, mixer: Callable[[Hyperparameters, int], dict[str, Any]]) -> DecoderSpec:
    def make(model: Hyperparameters, index: int) -> Layer:
        return layer(model, index, **mixer(model, index), **WITHOUT_FEED_FORWARD)

    return plain_decoder(model, no_rope(RopePairs.HALVES, 0), make)


def describe_jamba(model: Hyperparameters) -> DecoderSpec:
    """Jamba. Layers without heads of keys are Mamba 1, the others have attention without positions; some have experts
    in place of a feed-forward.
    """
    return plain_decoder(model, no_rope(RopePairs.HALVES, 0), _jamba_layer)


def _jamba_layer(model: Hyperparameters, index: int) -> Layer:
    mixer = {} if model.heads[index].num_kv else mamba1(model, index, model.norm)
    if not model.has(f"blk.{index}.ffn_gate_inp.weight"):
        return layer(model, index, experts=None, **mixer)
    return expert_layer(model, index, size=model.feed_forward_sizes[index], **mixer)
