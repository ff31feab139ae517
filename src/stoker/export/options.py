"""The options of an export. Whether a model can be exported with them is decided elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

AttentionKind: TypeAlias = Literal["gqa", "plain"]
KVType: TypeAlias = Literal["f32", "f16"]
ActivationKind: TypeAlias = Literal["int8", "f32"]
WeightKind: TypeAlias = Literal["keep", "f16", "f32", "int4", "int8"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """How a model is written; the defaults are what ONNX Runtime computes fastest and most exactly on CPUs."""

    attention: AttentionKind = "gqa"
    """`gqa`: ONNX Runtime's fused operators, such as `GroupQueryAttention`. `plain`: ONNX's own operators, except for
    quantized matrices."""
    kv_type: KVType = "f32"
    """KV cache data type of the graph's inputs and outputs."""
    weights: WeightKind = "keep"
    """Data type of the weights. `keep`: the exact values of the file. `int4`, `int8`: at most 4 or 8 bits, rounded if
    necessary. `f16`, `f32`: floating-point numbers."""
    activations: ActivationKind = "int8"
    """What the inputs of quantized matrices are rounded to, block by block. `f32`: no rounding, which is slow."""
    context_size: int | None = None
    """Maximum length of a sequence, in tokens; None = the context length that the model was trained with."""
