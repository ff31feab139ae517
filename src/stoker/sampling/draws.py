"""Stateless random numbers: each depends only on (seed, purpose, index), so results are reproducible."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


class Purpose(IntEnum):
    """The decision that a random number is used for. Each purpose has its own stream of numbers."""

    TOKEN = 1
    XTC = 2


@dataclass(frozen=True, slots=True)
class Draws:
    """The random numbers of one completion token.

    Attributes:
        seed: seed of the request, 0 to 2**64 - 1.
        index: number of completion tokens before this one.
    """

    seed: int
    index: int

    def uniform(self, purpose: Purpose) -> float:
        """A uniform number in [0, 1); every call returns the same one.

        It is number `index` of a SplitMix64 stream (Steele, Lea, Flood 2014) that seed and purpose determine.
        """
        stream = _mix(_mix(self.seed) + purpose * _GOLDEN)
        return (_mix(stream + (self.index + 1) * _GOLDEN) >> 11) * 2.0**-53


def _mix(value: int) -> int:
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
