"""The types that keys and values are kept in: what each of them takes, and which one is usual on this CPU."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Literal, TypeAlias

import numpy as np

from stoker import _native
from stoker.backends.native.rotation import Rope
from stoker.errors import ConfigError

KVType: TypeAlias = Literal["f32", "f16", "q8", "q4", "q16", "i16"]

_VERSIONS: dict[KVType, int] = {"q8": 4, "q4": 2}
"""Of the bytes of a type; 1 if it is not here."""
_MAX_CODED_HEAD = 512
"""Elements of a head whose sums of products of 16-bit codes fit into 32 bits: native/attention.hpp."""
_CODED: frozenset[KVType] = frozenset(("q16", "i16"))
_USUAL: dict[str, KVType] = {"avx2": "i16", "avxvnni": "i16", "avx512": "i16", "amx": "q16"}
"""By kernels to which codes of 16 bits are faster than floats. Tiles multiply bytes alone; other kernels pairs of whole
codes as fast as fours of bytes."""


def choose_kv_type(wanted: KVType | None, head_size: int) -> KVType:
    """The type to use: that which is wanted, or the fastest one here of those as exact as f16.

    Raises:
        ConfigError: heads are too large for the type that is wanted, or the environment names kernels that cannot run
            here.
    """
    if wanted is None:
        return _USUAL.get(_kernels(), "f16") if head_size <= _MAX_CODED_HEAD else "f16"
    if wanted in _CODED and head_size > _MAX_CODED_HEAD:
        message = f"This model's heads of {head_size} elements are too large for {wanted}; --kv-type f16 keeps them."
        raise ConfigError(message, parameter="kv_type")
    return wanted


def element_bytes(kv_type: KVType, head_size: int) -> float:
    """What one number of keys and values takes on average, its share of scales included."""
    elements_per_scale = 32 if head_size % 32 == 0 else 16
    coded = 2 + 2 / head_size
    q8 = 1 + 4 / elements_per_scale
    q4 = (q8 + 0.5 * -(-head_size // 32) * 32 / head_size + 2 / elements_per_scale) / 2
    return {"f32": 4.0, "f16": 2.0, "q8": q8, "q4": q4, "q16": coded, "i16": coded}[kv_type]


def kv_format(ropes: Iterable[Rope], kv_type: KVType) -> str:
    """Names the bytes of keys and values: keys are kept rotated, and a longer context may rotate them otherwise."""
    digest = hashlib.sha256()
    for rope in ropes:
        digest.update(rope.frequencies.tobytes() + np.float64(rope.magnitude).tobytes())
    return f"native {_VERSIONS.get(kv_type, 1)} {kv_type} {digest.hexdigest()[:16]}"


def _kernels() -> str:
    try:
        return _native.best_kernels()
    except RuntimeError as error:
        raise ConfigError(str(error)) from error
