"""KV cache types: the bytes that each type needs, and the default type on this CPU."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Literal, TypeAlias

import numpy as np

from stoker import _native
from stoker.backends.native.rope import Rope
from stoker.errors import ConfigError

KVType: TypeAlias = Literal["f32", "f16", "q8", "q4", "q16", "i16"]

_VERSIONS: dict[KVType, int] = {"q8": 4, "q4": 2}
"""Version of the byte format of each type; 1 for types that are not listed."""
_LARGEST_HEADS: dict[KVType, int] = {"q16": 512, "i16": 512, "q8": 576, "q4": 576}
"""Largest head of each type, in elements; without a limit for types that are not listed. See native/attention.hpp."""
_USUAL: dict[str, KVType] = {"avx2": "i16", "avxvnni": "i16", "avx512": "i16", "amx": "q16"}
"""The default type of kernels for which 16-bit codes are faster than floats. AMX tiles multiply only bytes; the other
kernels multiply pairs of 16-bit codes as fast as groups of four bytes."""


def choose_kv_type(wanted: KVType | None, head_size: int) -> KVType:
    """Returns the KV cache type to use: `wanted`, or the fastest type on this CPU that is as exact as f16.

    Raises:
        ConfigError: heads are too large for the wanted type, or the environment names kernels that this CPU cannot run.
    """
    if wanted is None:
        usual = _USUAL.get(_kernels(), "f16")
        return usual if can_hold(usual, head_size) else "f16"
    if not can_hold(wanted, head_size):
        most = _LARGEST_HEADS[wanted]
        message = f"This model's heads of {head_size} elements are too large for {wanted}, which takes up to {most}"
        raise ConfigError(f"{message}; give --kv-type f16.", parameter="kv_type")
    return wanted


def can_hold(kv_type: KVType, head_size: int) -> bool:
    """Whether heads of `head_size` elements are small enough for this type."""
    return head_size <= _LARGEST_HEADS.get(kv_type, head_size)


def element_bytes(kv_type: KVType, head_size: int) -> float:
    """Bytes of one element of keys or values on average, including its share of the scales."""
    elements_per_scale = 32 if head_size % 32 == 0 else 16
    coded = 2 + 2 / head_size
    q8 = 1 + 4 / elements_per_scale
    q4 = (q8 + 0.5 * -(-head_size // 32) * 32 / head_size + 2 / elements_per_scale) / 2
    return {"f32": 4.0, "f16": 2.0, "q8": q8, "q4": q4, "q16": coded, "i16": coded}[kv_type]


def kv_format(ropes: Iterable[Rope], kv_type: KVType) -> str:
    """Names the format of KV bytes. It includes RoPE's frequencies: keys are stored rotated, and another context size
    may have other frequencies."""
    digest = hashlib.sha256()
    for rope in ropes:
        digest.update(rope.frequencies.tobytes() + np.float64(rope.magnitude).tobytes())
    return f"native {_VERSIONS.get(kv_type, 1)} {kv_type} {digest.hexdigest()[:16]}"


def _kernels() -> str:
    try:
        return _native.best_kernels()
    except RuntimeError as error:
        raise ConfigError(str(error)) from error
