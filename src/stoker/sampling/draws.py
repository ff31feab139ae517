"""Random numbers without a state: each is a function of (seed, purpose, index), so nothing else can change it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


class Purpose(IntEnum):
    """What a random number decides. Each purpose has a stream of its own."""

    TOKEN = 1
    XTC = 2


@dataclass(frozen=True, slots=True)
class Draws:
    """The random numbers of one completion token.

    Attributes:
        seed: 0 … 2**64 - 1.
        index: how many completion tokens there are before this one.
    """

    seed: int
    index: int

    def uniform(self, purpose: Purpose) -> float:
        """A number in 0 … 1 (without 1), the same whenever it is asked for.

        SplitMix64 (Steele, Lea, Flood 2014), entered at position `index` of the stream that seed and purpose name.
        """
        stream = _mix(_mix(self.seed) + purpose * _GOLDEN)
        return (_mix(stream + (self.index + 1) * _GOLDEN) >> 11) * 2.0**-53


def _mix(value: int) -> int:
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
