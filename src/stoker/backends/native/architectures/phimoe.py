"""phimoe: Phi 3.5 MoE and Phi mini MoE. A phi3 with experts, and biases in all norms and matrices."""

from __future__ import annotations

from stoker.backends.native.architectures import phi3
from stoker.backends.native.architectures.experts import expert_layer
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import NormKind
from stoker.backends.native.spec import DecoderSpec, Layer


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`. Its norms do not subtract the mean, as in libllama."""
    return phi3.describe(model, _layer, norm=NormKind.RMS_BIASED, output_norm=model.biased_norm("output_norm"))


def _layer(model: Hyperparameters, index: int) -> Layer:
    block = f"blk.{index}"
    return expert_layer(
        model,
        index,
        size=model.feed_forward_sizes[index],
        routing={"is_normalised": True},
        attention_norm=model.biased_norm(f"{block}.attn_norm"),
        feed_forward_norm=model.biased_norm(f"{block}.ffn_norm"),
    )
