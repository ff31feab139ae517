"""hunyuan_vl: Hunyuan VL and OCR as text models. A hunyuan-dense with M-RoPE, which for text
equals RoPE.
"""

from __future__ import annotations

from stoker.backends.native.architectures.common import sectioned_rope
from stoker.backends.native.architectures.hunyuan_dense import base_of, decoder_with
from stoker.backends.native.architectures.hunyuan_dense import describe as describe_dense
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.spec import DecoderSpec


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    if not model.lists("rope.dimension_sections"):
        return describe_dense(model)
    return decoder_with(model, sectioned_rope(model, is_interleaved=False, base=base_of(model)))
