"""deepseek2: latent attention (MLA), where keys and values are one latent vector per position; the first layers are
dense, the others have experts and a shared expert.
"""

from __future__ import annotations

from dataclasses import replace
from math import log

from stoker.backends.native.architectures.common import check_betas, plain_decoder, rope
from stoker.backends.native.architectures.draft_head import with_draft_head
from stoker.backends.native.architectures.experts import chosen_as_said, layer_behind_dense, size_of_shared
from stoker.backends.native.architectures.latent import Sizes, latent_attention
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs, Routing
from stoker.backends.native.rope import RopeScaling
from stoker.backends.native.spec import DecoderSpec, Layer

_LAYERS_OF_FLASH, _VOCAB_OF_FLASH = (47, 48), 154880
"""Sizes that identify GLM 4.7 Flash: its old files do not say that it has sigmoid routing."""


def describe_deepseek2(model: Hyperparameters) -> DecoderSpec:
    """DeepSeek V2 and V3, GLM 4.7 Flash, Moonlight."""
    if model.optional_number("attention.temperature_scale") is not None:
        model.refuse("its queries grow with their position")
    scaling, sizes = _scaling(model), _sizes(model)
    rotation = rope(model, RopePairs.ADJACENT, dim=sizes.rotated, scaling=scaling)
    scale = _scale(model, model.rope_scaling(), sizes)
    return with_draft_head(model, plain_decoder(model, rotation, _layer, attention_scale=scale), _layer)


def _sizes(model: Hyperparameters) -> Sizes:
    """The sizes of attention. Files from before April 2025 are not prepared, and have other head sizes."""
    is_prepared = model.integer("attention.key_length_mla", 0, low=0) > 0
    return Sizes.of_prepared(model) if is_prepared else Sizes.of_plain_heads(model)


def _scaling(model: Hyperparameters) -> RopeScaling:
    """The RoPE scaling. With `yarn_log_multiplier`, YaRN scales scores instead of sine and cosine."""
    check_betas(model)
    scaling = model.rope_scaling()
    if not scaling.is_yarn and scaling.factor != 1:
        model.refuse("its context is stretched, but not by YaRN")
    if not _multiplier(model) or scaling.factor <= 1:
        return scaling
    return replace(scaling, attention_factor=scaling.attention_factor / (1 + 0.1 * log(scaling.factor)))


def _scale(model: Hyperparameters, scaling: RopeScaling, sizes: Sizes) -> float:
    usual = (sizes.plain + sizes.rotated) ** -0.5
    if not scaling.is_yarn or scaling.factor <= 1:
        return usual
    magnitude = 1 + (_multiplier(model) or 0.1) * log(scaling.factor)
    return usual * (scaling.attention_factor * magnitude) ** 2


def _multiplier(model: Hyperparameters) -> float:
    return model.optional_number("rope.scaling.yarn_log_multiplier") or 0.0


def _layer(model: Hyperparameters, index: int) -> Layer:
    is_flash = model.num_layers in _LAYERS_OF_FLASH and model.vocab_size == _VOCAB_OF_FLASH
    return layer_behind_dense(
        model,
        index,
        shared_size=size_of_shared(model),
        routing=chosen_as_said(model, index, Routing.SIGMOID if is_flash else Routing.SOFTMAX),
        **latent_attention(model, index, _sizes(model)),
    )
