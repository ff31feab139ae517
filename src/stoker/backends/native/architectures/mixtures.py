"""Mixtures of experts (MoE) that otherwise differ from Llama in few parts, such as norms over heads."""

from __future__ import annotations

from stoker.backends.native.architectures.common import DIVISORS, head_norms, layer, plain_decoder
from stoker.backends.native.architectures.draft_head import with_draft_head
from stoker.backends.native.architectures.experts import (
    chosen_as_said,
    expert_layer,
    expert_size,
    layer_behind_dense,
    size_of_shared,
)
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import HeadNorms, RopePairs, Routing
from stoker.backends.native.spec import DecoderSpec, Layer


def describe_bailingmoe(model: Hyperparameters) -> DecoderSpec:
    """Ling of 2025. A llama whose layers have experts and a shared expert."""

    def make(model: Hyperparameters, index: int) -> Layer:
        routing = {"is_normalised": model.flag("expert_weights_norm", default=False)}
        return expert_layer(model, index, shared_size=size_of_shared(model), routing=routing)

    return plain_decoder(model, RopePairs.ADJACENT, make, divisors=DIVISORS)


def describe_bailingmoe2(model: Hyperparameters) -> DecoderSpec:
    """Ling and Ring 2.0. The first layers are dense, the others have groups of experts and a shared expert;
    norms over heads.
    """

    def make(model: Hyperparameters, index: int) -> Layer:
        each = model.integer("expert_shared_feed_forward_length", 0, low=0) or expert_size(model)
        return layer_behind_dense(
            model,
            index,
            shared_size=model.integer("expert_shared_count", low=0) * each,
            routing=chosen_as_said(model, index, Routing.SOFTMAX),
            **head_norms(model, index),
        )

    return plain_decoder(model, RopePairs.HALVES, make)


def describe_deepseek(model: Hyperparameters) -> DecoderSpec:
    """DeepSeek MoE of 2024. The first layers are dense, the others have experts and a shared expert; the weights of a
    row's experts are not normalized to a sum of 1.
    """

    def make(model: Hyperparameters, index: int) -> Layer:
        return layer_behind_dense(model, index, shared_size=size_of_shared(model), routing={})

    return plain_decoder(model, RopePairs.ADJACENT, make, divisors=DIVISORS)


def describe_dots1(model: Hyperparameters) -> DecoderSpec:
    """dots.llm1. The first layers are dense, the others have experts and a shared expert; norms over heads."""

    def make(model: Hyperparameters, index: int) -> Layer:
        routing = chosen_as_said(model, index, Routing.SIGMOID)
        more = head_norms(model, index)
        return layer_behind_dense(model, index, shared_size=size_of_shared(model), routing=routing, **more)

    return plain_decoder(model, RopePairs.HALVES, make)


def describe_ernie4_5_moe(model: Hyperparameters) -> DecoderSpec:
    """ERNIE 4.5 with experts. Some layers are dense; experts may be chosen with a bias."""
    return plain_decoder(model, RopePairs.ADJACENT, _ernie4_5_layer)


def _ernie4_5_layer(model: Hyperparameters, index: int) -> Layer:
    num_dense, step = model.integer("leading_dense_block_count", 0, low=0), model.integer("interleave_moe_layer_step")
    if index < num_dense or (index + 1) % step:
        return layer(model, index, experts=None)
    bias = f"blk.{index}.exp_probs_b.bias"
    bias = model.vector(bias, model.num_experts) if model.has(bias) else None
    routing = {"is_normalised": True, "selection_bias": bias}
    num_shared = model.integer("expert_shared_count", 0, low=0)
    shared_size = model.integer("expert_shared_feed_forward_length", 0, low=0) or num_shared * expert_size(model)
    return expert_layer(model, index, shared_size=shared_size if num_shared else 0, routing=routing)


def describe_glm4moe(model: Hyperparameters) -> DecoderSpec:
    """GLM 4.5 to 4.7. The first layers are dense; sigmoid routing, with a bias for the choice of experts."""
    if model.lists("rope.dimension_sections"):
        model.refuse("it rotates along several axes, as models that see do")
    return with_draft_head(model, plain_decoder(model, RopePairs.HALVES, _glm4_layer), _glm4_layer)


def _glm4_layer(model: Hyperparameters, index: int) -> Layer:
    block = f"blk.{index}"
    more = head_norms(model, index) if model.has(f"{block}.attn_q_norm.weight") else {}
    more |= {"feed_forward_norm": model.norm(f"{block}.post_attention_norm")}
    routing = chosen_as_said(model, index, Routing.SIGMOID)
    return layer_behind_dense(model, index, shared_size=size_of_shared(model), routing=routing, **more)


def describe_minimax_m2(model: Hyperparameters) -> DecoderSpec:
    """MiniMax M2. Sigmoid routing with a bias, and norms over all heads of queries and of keys together."""

    def make(model: Hyperparameters, index: int) -> Layer:
        size = model.feed_forward_sizes[index]
        routing = chosen_as_said(model, index, Routing.SIGMOID) | {"is_normalised": True}
        return expert_layer(model, index, size=size, routing=routing, **head_norms(model, index, HeadNorms.WHOLE_ROW))

    return plain_decoder(model, RopePairs.HALVES, make)


def describe_olmoe(model: Hyperparameters) -> DecoderSpec:
    """OLMoE. Expert weights are not normalized to a sum of 1; norms over all heads of queries and of keys together."""

    def make(model: Hyperparameters, index: int) -> Layer:
        size = model.feed_forward_sizes[index]
        return expert_layer(model, index, size=size, **head_norms(model, index, HeadNorms.WHOLE_ROW))

    return plain_decoder(model, RopePairs.HALVES, make)
