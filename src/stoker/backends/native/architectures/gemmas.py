"""Gemma 1 to 3: GELU, a scaled embedding and NeoX-style RoPE (halves). From Gemma 2 on, there are sliding windows, and
norms before and after attention and feed-forward.

The converter has already added 1 to the weights of all norms.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

from stoker.backends.native.architectures.common import (
    decoder,
    head_norms,
    layer_between_norms,
    layers,
    plain_decoder,
    plain_scaling,
    rope,
    windows,
)
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import Activation, RopePairs
from stoker.backends.native.rope import Rope
from stoker.backends.native.spec import DecoderSpec, Layer

_PERIOD_OF_2, _PERIOD_OF_3 = 2, 6
"""In each group of this many layers, the last has no window."""
_LAYERS_OF_2_27B, _LAYERS_OF_3_27B = 46, 62
"""Numbers of layers of the 27B models, which scale scores by hidden size / heads, not head size; no file says so."""
_WINDOW_SIZE, _SCORE_CAP, _LOGIT_CAP = 4096, 50.0, 30.0
"""Values of all Gemma 2 models, which old files lack: window in tokens, soft caps of attention scores and of logits."""
_EVERYTHING, _WINDOW = 0, 1
"""Indices into `DecoderSpec.ropes`."""


def describe_gemma(model: Hyperparameters) -> DecoderSpec:
    """Gemma 1."""
    scale = sqrt(model.hidden_size)
    return plain_decoder(model, RopePairs.HALVES, activation=Activation.GELU_TANH, embedding_scale=scale)


def describe_gemma2(model: Hyperparameters) -> DecoderSpec:
    """Gemma 2. Soft caps of attention scores and of logits, and a sliding window in every other layer."""
    base = model.rope_base("rope.freq_base_swa", model.rope_base())
    return _decoder(
        model,
        _LAYERS_OF_2_27B,
        in_window=rope(model, RopePairs.HALVES, base=base),
        layers=layers(model, _layer, windows(model, _PERIOD_OF_2, _WINDOW_SIZE)),
        attention_softcap=model.number("attn_logit_softcapping", _SCORE_CAP),
        logit_softcap=model.number("final_logit_softcapping", _LOGIT_CAP),
    )


def describe_gemma3(model: Hyperparameters, **more: Any) -> DecoderSpec:
    """The text part of Gemma 3. Norms over heads; five layers with a sliding window, then one without.

    Only layers without a window have RoPE scaling; a window fits into the original context anyway.

    Args:
        model: the file.
        more: fields of `DecoderSpec` that differ from those of Gemma 3.
    """
    base = model.rope_base("rope.freq_base_swa")
    return _decoder(
        model,
        _LAYERS_OF_3_27B,
        in_window=rope(model, RopePairs.HALVES, base=base, scaling=plain_scaling(model)),
        layers=layers(model, _layer_of_3, windows(model, _PERIOD_OF_3, 0)),
        logit_softcap=model.optional_number("final_logit_softcapping") or 0.0,
        **more,
    )


def describe_gemma_embedding(model: Hyperparameters) -> DecoderSpec:
    """EmbeddingGemma. A Gemma 3 with bidirectional attention, also in its windows."""
    return describe_gemma3(model, sees_ahead=True)


def _decoder(model: Hyperparameters, layers_of_27b: int, *, in_window: Rope, **more: Any) -> DecoderSpec:
    scaled_by = model.hidden_size // model.num_heads if model.num_layers == layers_of_27b else model.head_size
    return decoder(
        model,
        activation=Activation.GELU_TANH,
        attention_scale=1 / sqrt(scaled_by),
        embedding_scale=sqrt(model.hidden_size),
        ropes=(rope(model, RopePairs.HALVES), in_window),
        **more,
    )


def _layer(model: Hyperparameters, index: int, window: int | None, **more: Any) -> Layer:
    return layer_between_norms(model, index, rope=_WINDOW if window else _EVERYTHING, window=window, **more)


def _layer_of_3(model: Hyperparameters, index: int, window: int | None) -> Layer:
    return _layer(model, index, window, **head_norms(model, index))
