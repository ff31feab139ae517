"""Llama, and decoders and encoders that differ from it in one or two parts.

The converter of GGUF files has reordered the heads of Llama, so that RoPE rotates adjacent pairs of elements.
"""

from __future__ import annotations

from dataclasses import replace
from math import log

from stoker.backends.native.architectures.common import (
    DIVISORS,
    check_betas,
    decoder,
    distance_slopes,
    head_norms,
    layer,
    layer_between_norms,
    layer_without_gate,
    layers,
    plain_decoder,
    rope,
)
from stoker.backends.native.architectures.experts import expert_layer
from stoker.backends.native.architectures.latent import Sizes, latent_attention
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import Activation, HeadNorms, NormKind, RopePairs
from stoker.backends.native.rope import RopeScaling, no_rope
from stoker.backends.native.spec import DecoderSpec, Layer, QueryScales

_MAX_LAYERS = 512
_LAYERS_OF_BAICHUAN_7B, _LAYERS_OF_BAICHUAN_13B = 32, 40
"""Numbers of layers, which tell the sizes apart; no file says whether a model has ALiBi."""
_SMOLLM3_PERIOD = 4
"""In each group of this many layers, the last has no RoPE; no file says so."""
_ROTATES, _STANDS = 0, 1
"""Indices into `DecoderSpec.ropes`; `_STANDS`: no rotation."""


def describe_llama(model: Hyperparameters) -> DecoderSpec:
    """Llama 1 to 3, Mistral, Mixtral, SmolLM and models of the same form. `rope_freqs` has Llama 3's divisors."""
    make = _mixtral_layer if model.num_experts else layer
    return plain_decoder(model, RopePairs.ADJACENT, make, divisors=DIVISORS)


describe_llama_embed = describe_llama


def _mixtral_layer(model: Hyperparameters, index: int) -> Layer:
    return expert_layer(model, index, size=model.feed_forward_sizes[index], routing={"is_normalised": True})


def describe_arcee(model: Hyperparameters) -> DecoderSpec:
    """Arcee's AFM. A llama whose feed-forward has no gate, and squared ReLU as activation."""
    activation = Activation.RELU_SQUARED
    return plain_decoder(model, RopePairs.ADJACENT, layer_without_gate, divisors=DIVISORS, activation=activation)


def describe_baichuan(model: Hyperparameters) -> DecoderSpec:
    """Baichuan 1 and 2. A llama; the larger models have ALiBi instead of RoPE."""
    if model.num_layers == _LAYERS_OF_BAICHUAN_7B:
        return plain_decoder(model, RopePairs.ADJACENT)
    if model.num_layers != _LAYERS_OF_BAICHUAN_13B:
        model.refuse(f"it has {model.num_layers} layers; what tells positions is known of 32 and 40 alone")
    return plain_decoder(model, no_rope(RopePairs.ADJACENT, 0), distance_slopes=distance_slopes(model.num_heads))


def describe_bitnet(model: Hyperparameters) -> DecoderSpec:
    """BitNet b1.58. A llama with a norm before the output matrix of attention and one before the last matrix of the
    feed-forward; each matrix may have a scale.
    """

    def make(model: Hyperparameters, index: int) -> Layer:
        block, heads = f"blk.{index}", model.heads[index]
        mixed = model.norm(f"{block}.attn_sub_norm", heads.num * heads.size)
        inner = model.norm(f"{block}.ffn_sub_norm", model.feed_forward_sizes[index])
        return layer(model, index, mixed_norm=mixed, inner_norm=inner)

    return plain_decoder(model, RopePairs.HALVES, make)


def describe_chatglm(model: Hyperparameters) -> DecoderSpec:
    """GLM 3 and 4 of 2024. A llama with fused matrices, and RoPE on half of each head."""
    return plain_decoder(model, RopePairs.ADJACENT)


def describe_ernie4_5(model: Hyperparameters) -> DecoderSpec:
    """ERNIE 4.5, dense. A llama; the published model already rotates adjacent pairs of elements."""
    return plain_decoder(model, RopePairs.ADJACENT)


def describe_eurobert(model: Hyperparameters) -> DecoderSpec:
    """EuroBERT. A llama with bidirectional attention, and NeoX-style RoPE (halves)."""
    return plain_decoder(model, RopePairs.HALVES, sees_ahead=True)


def describe_glm4(model: Hyperparameters) -> DecoderSpec:
    """GLM 4 of 2025, dense. Norms before and after attention and feed-forward; RoPE on half of each head;
    fused gate and up.
    """
    if model.lists("rope.dimension_sections"):  # with M-RoPE, the pairs of elements differ, too
        model.refuse("it rotates along several axes, as models that see do")
    return plain_decoder(model, RopePairs.ADJACENT, layer_between_norms)


def describe_internlm2(model: Hyperparameters) -> DecoderSpec:
    """InternLM 2 and 2.5. A llama; the converter has split its fused matrices."""
    return plain_decoder(model, RopePairs.ADJACENT)


def describe_maincoder(model: Hyperparameters) -> DecoderSpec:
    """Maincoder. A llama with norms over heads after RoPE."""

    def make(model: Hyperparameters, index: int) -> Layer:
        return layer(model, index, **head_norms(model, index, HeadNorms.AFTER_ROPE))

    return plain_decoder(model, RopePairs.ADJACENT, make)


def describe_mistral3(model: Hyperparameters) -> DecoderSpec:
    """Mistral Small 3.1 and Ministral 3 as text models. A llama that may scale queries by position."""
    scaling, slope = _mistral3_scaling(model), model.optional_number("attention.temperature_scale")
    return plain_decoder(
        model,
        rope(model, RopePairs.ADJACENT, divisors=DIVISORS, scaling=scaling),
        divisors=DIVISORS,
        attention_scale=model.optional_number("attention.scale") or model.head_size**-0.5,
        query_scales=None if slope is None else QueryScales(slope=slope, period=scaling.original_context),
    )


def _mistral3_scaling(model: Hyperparameters) -> RopeScaling:
    """The RoPE scaling. With `yarn_log_multiplier`, a factor that YaRN gives sine and cosine is undone."""
    check_betas(model)
    scaling, multiplier = model.rope_scaling(), model.optional_number("rope.scaling.yarn_log_multiplier")
    if multiplier is None or not scaling.is_yarn or scaling.factor <= 1:
        return scaling
    taken_back = 1 + 0.1 * multiplier * log(scaling.factor)
    return replace(scaling, attention_factor=scaling.attention_factor / taken_back)


def describe_nanbeige(model: Hyperparameters) -> DecoderSpec:
    """Nanbeige 4.2. A llama whose layers are computed in several rounds (loops) with the same weights; each round has
    its own keys and values. The output norm is also applied between two rounds, unless the file says otherwise.
    """
    num_rounds = model.integer("num_loops", 1, high=_MAX_LAYERS // model.num_layers)
    one_round = layers(model)
    norm = None if model.flag("skip_loop_final_norm", default=False) else model.norm("output_norm")
    with_norm = (*one_round[:-1], replace(one_round[-1], output_norm=norm))
    return decoder(
        model,
        attention_scale=model.optional_number("attention.scale") or model.head_size**-0.5,
        ropes=(rope(model, RopePairs.ADJACENT, divisors=DIVISORS),),
        layers=(*with_norm * (num_rounds - 1), *one_round),
        unused=frozenset({DIVISORS}),
    )


def describe_neo_bert(model: Hyperparameters) -> DecoderSpec:
    """NeoBERT. A llama with bidirectional attention, and another name for its last norm."""
    return plain_decoder(model, RopePairs.ADJACENT, sees_ahead=True, output_norm=model.norm("enc.output_norm"))


def describe_olmo(model: Hyperparameters) -> DecoderSpec:
    """OLMo 1. A llama with layer norms without weights; queries, keys and values may be clamped."""
    norm = model.plain_norm()

    def make(model: Hyperparameters, index: int) -> Layer:
        return layer(model, index, attention_norm=norm, feed_forward_norm=norm)

    limit = model.optional_number("attention.clamp_kqv") or 0.0
    return plain_decoder(model, RopePairs.ADJACENT, make, norm=NormKind.LAYER, input_limit=limit, output_norm=norm)


def describe_plm(model: Hyperparameters) -> DecoderSpec:
    """PLM 1.8B. Latent attention (MLA) with one matrix for the keys and values of all heads; a feed-forward without
    gate, with squared ReLU.
    """
    sizes = Sizes.of_plain_heads(model)

    def make(model: Hyperparameters, index: int) -> Layer:
        return layer_without_gate(model, index, **latent_attention(model, index, sizes))

    rotation = rope(model, RopePairs.ADJACENT, dim=sizes.rotated)
    return plain_decoder(model, rotation, make, activation=Activation.RELU_SQUARED)


def describe_smollm3(model: Hyperparameters) -> DecoderSpec:
    """SmolLM 3. A llama without RoPE in every fourth layer."""
    rotates = rope(model, RopePairs.ADJACENT)

    def make(model: Hyperparameters, index: int) -> Layer:
        return layer(model, index, rope=_ROTATES if (index + 1) % _SMOLLM3_PERIOD else _STANDS)

    return decoder(model, ropes=(rotates, no_rope(rotates.pairs, rotates.dim)), layers=layers(model, make))


def describe_xverse(model: Hyperparameters) -> DecoderSpec:
    """XVERSE. A llama."""
    return plain_decoder(model, RopePairs.ADJACENT)
