"""What a step takes, as a function of what is in it, learned from steps that were measured. It has no clock.

```
    seconds  ≈  pass  +  streams · a  +  prompt entries · b  +  positions they look back at · c
```

Four unknown prices and one number per step: normalised least mean squares (Widrow and Hoff). Each step moves the prices
along its own mixture only, so steps of one kind never spoil what was learned of another, and what was just seen is
predicted well at once, whatever its parts are believed to cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import mul

_SHAPE = (1.0, 0.05, 0.1, 0.1 / 4096)
"""What the parts cost relative to each other, before anything is known: roughly that of a CPU."""
_GAIN = 0.3
"""Part of an error that is corrected at once."""
_MAX_SURPRISE = 4.0
"""A step that took longer than this times what was expected counts no more than that: something stood in its way."""
_LEAST = 1e-3
"""No part is ever believed to cost less than this part of the dearest one's weight."""


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What is in a step."""

    num_streams: int = 0
    """Sequences that get one token."""
    num_prompt: int = 0
    """Entries of prompts."""
    num_attended: int = 0
    """Earlier positions that these look back at, added up over them."""


class StepCost:
    """Predicts the seconds of a step."""

    def __init__(self) -> None:
        self._weights: list[float] = []
        """Seconds for each part of `_SHAPE`; empty = nothing was measured."""

    @property
    def is_known(self) -> bool:
        return bool(self._weights)

    @property
    def entry_s(self) -> float:
        """The price of one more prompt entry, at the beginning of a sequence."""
        return self._weights[2] * _SHAPE[2]

    @property
    def attended_s(self) -> float:
        """The price of one position that an entry looks back at."""
        return self._weights[3] * _SHAPE[3]

    def predict(self, load: StepLoad) -> float:
        """Seconds for a step. Something must have been observed."""
        return sum(map(mul, self._weights, _parts(load)))

    def observe(self, load: StepLoad, step_s: float) -> None:
        """Learns that a step with this load took so long."""
        parts = _parts(load)
        if not self._weights:
            self._weights = [step_s / sum(parts)] * len(parts)
            return
        expected = self.predict(load)
        error = min(step_s, _MAX_SURPRISE * expected) - expected
        gain = _GAIN * error / sum(part * part for part in parts)
        moved = [weight + gain * part for weight, part in zip(self._weights, parts, strict=True)]
        least = _LEAST * max(moved)
        self._weights = [max(weight, least) for weight in moved]


def _parts(load: StepLoad) -> tuple[float, ...]:
    return tuple(map(mul, (1, load.num_streams, load.num_prompt, load.num_attended), _SHAPE))
