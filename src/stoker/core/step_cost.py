"""What a step takes, as a function of what is in it, learned from steps that were measured. It has no clock.

```
    seconds  ≈  passes · a  +  streams · b  +  prompt entries · c  +  positions they look back at · d
```

Four unknown prices and one number per step: normalised least mean squares (Widrow and Hoff). Each step moves the prices
along its own mixture only, so steps of one kind never spoil what was learned of another, and what was just seen is
predicted well at once, whatever its parts are believed to cost.
"""

from __future__ import annotations

from operator import mul
from typing import NamedTuple, TypeAlias

Shape: TypeAlias = tuple[float, float, float, float]
"""What the parts cost relative to each other."""

ONE_PASS: Shape = (1.0, 0.05, 0.1, 0.1 / 4096)
"""Before anything is known: roughly that of a CPU."""
MANY_PASSES: Shape = (1.0, 0.5, 0.25, 0.1 / 4096)
"""The same where prompts get passes of their own: roughly ONNX Runtime's."""
_RATE_WEIGHT = 0.3
"""Share of the newest measurement in a `Rate`, a moving average."""
_GAIN = 0.3
"""Part of an error that is corrected at once."""
_MAX_SURPRISE = 4.0
"""A step that took longer than this times what was expected counts no more than that: something stood in its way."""
_LEAST = 1e-3
"""No part is ever believed to cost less than this part of the dearest one's weight."""


class StepLoad(NamedTuple):
    """What is in a step."""

    num_streams: int = 0
    """Sequences that get one token."""
    num_prompt: int = 0
    """Entries of prompts."""
    num_attended: int = 0
    """Earlier positions that these look back at, added up over them."""
    num_passes: int = 1
    """In which the backend computes it: more than one where prompts get one each."""


class StepCost:
    """Predicts the seconds of a step.

    Args:
        shape: what to believe before anything is known.
    """

    def __init__(self, shape: Shape = ONE_PASS) -> None:
        self._shape = shape
        self._weights: list[float] = []
        """Seconds for each part of the shape; empty = nothing was measured."""

    @property
    def is_known(self) -> bool:
        return bool(self._weights)

    @property
    def pass_s(self) -> float:
        """What one pass costs, whatever is in it."""
        return self._weights[0] * self._shape[0]

    @property
    def entry_s(self) -> float:
        """The price of one more prompt entry, at the beginning of a sequence."""
        return self._weights[2] * self._shape[2]

    @property
    def attended_s(self) -> float:
        """The price of one position that an entry looks back at."""
        return self._weights[3] * self._shape[3]

    def predict(self, load: StepLoad) -> float:
        """Seconds for a step. Something must have been observed."""
        return sum(map(mul, self._weights, self._parts(load)))

    def observe(self, load: StepLoad, step_s: float) -> None:
        """Learns that a step with this load took so long."""
        parts = self._parts(load)
        if not self._weights:
            self._weights = [step_s / sum(parts)] * len(parts)
            return
        # Four products each, written out: this is done in every step.
        a, b, c, d = parts
        w, x, y, z = self._weights
        expected = w * a + x * b + y * c + z * d
        error = min(step_s, _MAX_SURPRISE * expected) - expected
        gain = _GAIN * error / (a * a + b * b + c * c + d * d)
        w, x, y, z = w + gain * a, x + gain * b, y + gain * c, z + gain * d
        least = _LEAST * max(w, x, y, z)
        self._weights = [max(w, least), max(x, least), max(y, least), max(z, least)]

    def _parts(self, load: StepLoad) -> tuple[float, float, float, float]:
        a, b, c, d = self._shape
        return load.num_passes * a, load.num_streams * b, load.num_prompt * c, load.num_attended * d


class Rate:
    """Seconds per entry of one kind of work, learned from how long it really takes."""

    def __init__(self) -> None:
        self.entry_s: float | None = None
        """None until something was measured."""

    def observe(self, num_entries: int, seconds: float) -> None:
        """Learns that `num_entries` took so long. Nothing is learned from nothing."""
        if num_entries < 1 or seconds <= 0:
            return
        entry_s = seconds / num_entries
        self.entry_s = entry_s if self.entry_s is None else self.entry_s + _RATE_WEIGHT * (entry_s - self.entry_s)

    def affordable(self, seconds: float, first_guess: int) -> int:
        """How many entries fit into so many seconds."""
        return first_guess if self.entry_s is None else int(seconds / self.entry_s)

    def fade(self) -> None:
        """Becomes a little cheaper: what is never tried, because it was dear once, is tried again some time."""
        if self.entry_s is not None:
            self.entry_s *= 0.95
