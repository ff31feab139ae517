"""What a person may choose about an export. Whether a model can be had like that is decided elsewhere."""

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
    """`gqa`: ONNX Runtime's fused `GroupQueryAttention` and its companions. `plain`: operators of ONNX alone, but for
    quantized matrices."""
    kv_type: KVType = "f32"
    """Of keys and values, in and out."""
    weights: WeightKind = "keep"
    """`keep`: the numbers of the file. `int4`, `int8`: at most so many bits, rounded where that is less."""
    activations: ActivationKind = "int8"
    """What the inputs of quantized matrices are rounded to, block by block; `f32`: they are not, which is slow."""
    context_size: int | None = None
    """Longest sequence that can be computed, in tokens; None = what the model was trained with."""
