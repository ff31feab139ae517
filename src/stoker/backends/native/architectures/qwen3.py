"""qwen3: Qwen 3, dense. A norm over each head of queries and keys, no biases, heads of their own size."""

from __future__ import annotations

from stoker.backends.native.architectures.common import decoder, layer, layers, rope
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.spec import DecoderSpec, Layer, RopePairs


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    return decoder(model, architecture="qwen3", ropes=(rope(model, RopePairs.HALVES),), layers=layers(model, _layer))


def _layer(model: Hyperparameters, index: int) -> Layer:
    return layer(
        model,
        index,
        query_norm=model.norm(f"blk.{index}.attn_q_norm", model.head_size),
        key_norm=model.norm(f"blk.{index}.attn_k_norm", model.head_size),
    )
