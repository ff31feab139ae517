"""Decoders, and encoders that see ahead, which are a llama but for a part or two.

The converter has already put the elements of each head into the pairs that are rotated.
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
"""By which the two are told apart; no file says more."""
_SMOLLM3_PERIOD = 4
"""Each so-many-th layer rotates nothing; no file says so."""
_ROTATES, _STANDS = 0, 1
"""Indices of the two ropes."""


def describe_llama(model: Hyperparameters) -> DecoderSpec:
    """Llama 1 to 3, Mistral, Mixtral, SmolLM and all of their shape. Llama 3's divisors are in `rope_freqs`."""
    make = _mixtral_layer if model.num_experts else layer
    return plain_decoder(model, RopePairs.ADJACENT, make, divisors=DIVISORS)


describe_llama_embed = describe_llama


def _mixtral_layer(model: Hyperparameters, index: int) -> Layer:
    return expert_layer(model, index, size=model.feed_forward_sizes[index], routing={"is_normalised": True})


def describe_arcee(model: Hyperparameters) -> DecoderSpec:
    """Arcee's AFM. The feed-forward squares what is positive, and has no gate."""
    activation = Activation.RELU_SQUARED
    return plain_decoder(model, RopePairs.ADJACENT, layer_without_gate, divisors=DIVISORS, activation=activation)


def describe_baichuan(model: Hyperparameters) -> DecoderSpec:
    """Baichuan 1 and 2. The larger one has no rotation, its scores fall with the distance (ALiBi)."""
    if model.num_layers == _LAYERS_OF_BAICHUAN_7B:
        return plain_decoder(model, RopePairs.ADJACENT)
    if model.num_layers != _LAYERS_OF_BAICHUAN_13B:
        model.refuse(f"it has {model.num_layers} layers; what tells positions is known of 32 and 40 alone")
    return plain_decoder(model, no_rope(RopePairs.ADJACENT, 0), distance_slopes=distance_slopes(model.num_heads))


def describe_bitnet(model: Hyperparameters) -> DecoderSpec:
    """BitNet b1.58. A norm behind attention, and one before the last matrix of the feed-forward; matrices may have a
    scale each.
    """

    def make(model: Hyperparameters, index: int) -> Layer:
        block, heads = f"blk.{index}", model.heads[index]
        mixed = model.norm(f"{block}.attn_sub_norm", heads.num * heads.size)
        inner = model.norm(f"{block}.ffn_sub_norm", model.feed_forward_sizes[index])
        return layer(model, index, mixed_norm=mixed, inner_norm=inner)

    return plain_decoder(model, RopePairs.HALVES, make)


def describe_chatglm(model: Hyperparameters) -> DecoderSpec:
    """GLM 3 and 4 of 2024. Fused matrices, and half of each head rotated."""
    return plain_decoder(model, RopePairs.ADJACENT)


def describe_ernie4_5(model: Hyperparameters) -> DecoderSpec:
    """ERNIE 4.5, dense."""
    return plain_decoder(model, RopePairs.ADJACENT)


def describe_eurobert(model: Hyperparameters) -> DecoderSpec:
    """EuroBERT. A llama that sees ahead."""
    return plain_decoder(model, RopePairs.HALVES, sees_ahead=True)


def describe_glm4(model: Hyperparameters) -> DecoderSpec:
    """GLM 4 of 2025, dense. Norms on both sides, half of each head rotated, gate and up in one matrix."""
    if model.lists("rope.dimension_sections"):  # their pairs are others, too
        model.refuse("it rotates along several axes, as models that see do")
    return plain_decoder(model, RopePairs.ADJACENT, layer_between_norms)


def describe_internlm2(model: Hyperparameters) -> DecoderSpec:
    """InternLM 2 and 2.5. The converter has taken their fused matrices apart."""
    return plain_decoder(model, RopePairs.ADJACENT)


def describe_maincoder(model: Hyperparameters) -> DecoderSpec:
    """Maincoder. Heads are normalised after their rotation."""

    def make(model: Hyperparameters, index: int) -> Layer:
        return layer(model, index, **head_norms(model, index, HeadNorms.AFTER_ROPE))

    return plain_decoder(model, RopePairs.ADJACENT, make)


def describe_mistral3(model: Hyperparameters) -> DecoderSpec:
    """Mistral Small 3.1 and Ministral 3 as text models. Queries may grow with their position."""
    scaling, slope = _mistral3_scaling(model), model.optional_number("attention.temperature_scale")
    return plain_decoder(
        model,
        rope(model, RopePairs.ADJACENT, divisors=DIVISORS, scaling=scaling),
        divisors=DIVISORS,
        attention_scale=model.optional_number("attention.scale") or model.head_size**-0.5,
        query_scales=None if slope is None else QueryScales(slope=slope, period=scaling.original_context),
    )


def _mistral3_scaling(model: Hyperparameters) -> RopeScaling:
    """A file that has the multiplier takes back what YaRN does to sine and cosine."""
    check_betas(model)
    scaling, multiplier = model.rope_scaling(), model.optional_number("rope.scaling.yarn_log_multiplier")
    if multiplier is None or not scaling.is_yarn or scaling.factor <= 1:
        return scaling
    taken_back = 1 + 0.1 * multiplier * log(scaling.factor)
    return replace(scaling, attention_factor=scaling.attention_factor / taken_back)


def describe_nanbeige(model: Hyperparameters) -> DecoderSpec:
    """Nanbeige 4.2. Layers are computed in several rounds with the same weights; each round has keys and values of its
    own. Unless the file says otherwise, the output norm stands between two rounds, too.
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
    """NeoBERT. A llama that sees ahead, whose last norm has another name."""
    return plain_decoder(model, RopePairs.ADJACENT, sees_ahead=True, output_norm=model.norm("enc.output_norm"))


def describe_olmo(model: Hyperparameters) -> DecoderSpec:
    """OLMo 1. Norms take the mean away and have no weights; queries, keys and values may be limited."""
    norm = model.plain_norm()

    def make(model: Hyperparameters, index: int) -> Layer:
        return layer(model, index, attention_norm=norm, feed_forward_norm=norm)

    limit = model.optional_number("attention.clamp_kqv") or 0.0
    return plain_decoder(model, RopePairs.ADJACENT, make, norm=NormKind.LAYER, input_limit=limit, output_norm=norm)


def describe_plm(model: Hyperparameters) -> DecoderSpec:
    """PLM 1.8B. Keys and values are one latent vector of each position, from which one matrix makes those of all heads;
    the feed-forward is a squared ReLU.
    """
    sizes = Sizes.of_plain_heads(model)

    def make(model: Hyperparameters, index: int) -> Layer:
        return layer_without_gate(model, index, **latent_attention(model, index, sizes))

    rotation = rope(model, RopePairs.ADJACENT, dim=sizes.rotated)
    return plain_decoder(model, rotation, make, activation=Activation.RELU_SQUARED)


def describe_smollm3(model: Hyperparameters) -> DecoderSpec:
    """SmolLM 3. Each fourth layer rotates nothing."""
    rotates = rope(model, RopePairs.ADJACENT)

    def make(model: Hyperparameters, index: int) -> Layer:
        return layer(model, index, rope=_ROTATES if (index + 1) % _SMOLLM3_PERIOD else _STANDS)

    return decoder(model, ropes=(rotates, no_rope(rotates.pairs, rotates.dim)), layers=layers(model, make))


def describe_xverse(model: Hyperparameters) -> DecoderSpec:
    """XVERSE."""
    return plain_decoder(model, RopePairs.ADJACENT)
