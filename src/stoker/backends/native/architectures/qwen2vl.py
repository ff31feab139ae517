"""qwen2vl, paddleocr: Qwen 2 VL and 2.5 VL as text models. A qwen2 with M-RoPE, which for text equals
RoPE.
"""

from __future__ import annotations

from stoker.backends.native.architectures.common import decoder, layers, sectioned_rope
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.spec import DecoderSpec


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    return decoder(model, ropes=(sectioned_rope(model, is_interleaved=False),), layers=layers(model))


def describe_paddleocr(model: Hyperparameters) -> DecoderSpec:
    """PaddleOCR VL as a text model. See `describe_decoder`: without biases."""
    return describe(model)
