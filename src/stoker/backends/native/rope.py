"""From the numbers of a file to rotation frequencies: none, linear, YaRN, Llama 3 and LongRoPE scaling, in float64.

Llama 3 and LongRoPE come as one divisor per frequency, in a tensor of the file. YaRN: arXiv:2309.00071.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, log, pi

import numpy as np
from numpy.typing import NDArray

from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.rotation import Rope

_BETA_FAST, _BETA_SLOW = 32.0, 1.0
"""Turns within the original context beyond which, and below which, YaRN leaves or stretches a frequency wholly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How a context is stretched. `factor` 1 and no YaRN: not at all."""

    factor: float = 1.0
    is_yarn: bool = False
    original_context: int
    """Tokens that the frequencies were trained with before they were stretched."""
    attention_factor: float = 1.0
    """Given by the file; multiplies sine and cosine."""


def scaled_rope(
    *, pairs: RopePairs, dim: int, base: float, scaling: RopeScaling, divisors: NDArray[np.float32] | None = None
) -> Rope:
    """The rotation of one kind of layer.

    Args:
        pairs: which elements belong together.
        dim: how many elements of a head are rotated; even.
        base: the slowest pair turns about `base` times slower than the fastest.
        scaling: linear or YaRN.
        divisors: one for each of the `dim / 2` frequencies.
    """
    trained = base ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    if divisors is not None:
        trained = trained / divisors
    stretched = trained / scaling.factor
    if not scaling.is_yarn:
        return Rope(pairs=pairs, frequencies=stretched, magnitude=scaling.attention_factor)
    keep = _yarn_share_kept(dim, base, scaling.original_context)
    magnitude = scaling.attention_factor * (1 + 0.1 * log(scaling.factor) if scaling.factor > 1 else 1)
    return Rope(pairs=pairs, frequencies=stretched * (1 - keep) + trained * keep, magnitude=magnitude)


def no_rope(pairs: RopePairs, dim: int) -> Rope:
    """Layers that rotate nothing."""
    return Rope(pairs=pairs, frequencies=np.zeros(dim // 2))


def _yarn_share_kept(dim: int, base: float, original_context: int) -> NDArray[np.float64]:
    """1 for the fast frequencies, 0 for the slow ones, a ramp between them."""

    def pair_that_turns(times: float) -> float:
        return dim * log(original_context / (times * 2 * pi)) / (2 * log(base))

    low = max(0, floor(pair_that_turns(_BETA_FAST)))
    high = min(dim - 1, ceil(pair_that_turns(_BETA_SLOW)))
    ramp = (np.arange(dim // 2, dtype=np.float64) - low) / max(0.001, high - low)
    return 1 - np.clip(ramp, 0, 1)
