"""Predicts the duration of a step from its content, learned online from measured steps. It has no clock.

```
    seconds  ≈  passes · a  +  streams · b  +  prompt entries · c  +  positions that they attend to · d
```

Each step gives one equation for the four unknown costs: normalized least mean squares (Widrow and Hoff). A step changes
the costs in proportion to its own content only, so that steps of one kind do not spoil what was learned from another
kind, and a step like the last one is predicted well at once.
"""

from __future__ import annotations

from operator import mul
from typing import NamedTuple, TypeAlias

Shape: TypeAlias = tuple[float, float, float, float]
"""Relative costs a, b, c and d of the four terms."""

ONE_PASS: Shape = (1.0, 0.05, 0.1, 0.1 / 4096)
"""Initial relative costs if a step is one forward pass: roughly those of a CPU."""
MANY_PASSES: Shape = (1.0, 0.5, 0.25, 0.1 / 4096)
"""Initial relative costs if each prompt needs its own forward pass: roughly those of ONNX Runtime."""
_RATE_WEIGHT = 0.3
"""Share of the newest measurement in a `Rate`, a moving average."""
_GAIN = 0.3
"""Learning rate: fraction of a prediction error that is corrected at once."""
_MAX_SURPRISE = 4.0
"""Longer steps are counted as this multiple of the predicted duration: something else delayed them."""
_LEAST = 1e-3
"""Minimum weight of a term, as a fraction of the largest weight."""


class StepLoad(NamedTuple):
    """The content of a step."""

    num_streams: int = 0
    """Number of entries in decodes, drafted ones included."""
    num_prompt: int = 0
    """Number of prompt entries."""
    num_attended: int = 0
    """Number of positions that the prompt entries attend to, summed over the entries."""
    num_passes: int = 1
    """Number of forward passes: more than one if each prompt needs its own."""


class StepCost:
    """Predicts the seconds of a step.

    Args:
        shape: the initial relative costs.
    """

    def __init__(self, shape: Shape = ONE_PASS) -> None:
        self._shape = shape
        self._weights: list[float] = []
        """Learned factors on the shape, in seconds; empty = nothing was measured yet."""

    @property
    def is_known(self) -> bool:
        return bool(self._weights)

    @property
    def pass_s(self) -> float:
        """Seconds per forward pass, besides the cost of its entries."""
        return self._weights[0] * self._shape[0]

    @property
    def entry_s(self) -> float:
        """Seconds per prompt entry at the beginning of a sequence."""
        return self._weights[2] * self._shape[2]

    @property
    def attended_s(self) -> float:
        """Seconds per position that a prompt entry attends to."""
        return self._weights[3] * self._shape[3]

    def predict(self, load: StepLoad) -> float:
        """Seconds for a step. Something must have been observed."""
        return sum(map(mul, self._weights, self._parts(load)))

    def observe(self, load: StepLoad, step_s: float) -> None:
        """Learns that a step with this load took `step_s` seconds."""
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
        """Learns that `num_entries` entries took `seconds`. Ignored unless both are positive."""
        if num_entries < 1 or seconds <= 0:
            return
        entry_s = seconds / num_entries
        self.entry_s = entry_s if self.entry_s is None else self.entry_s + _RATE_WEIGHT * (entry_s - self.entry_s)

    def affordable(self, seconds: float, first_guess: int) -> int:
        """Number of entries that fit into `seconds`; `first_guess` before the first measurement."""
        return first_guess if self.entry_s is None else int(seconds / self.entry_s)

    def fade(self) -> None:
        """Lowers the cost a little, so that work that was too expensive once is tried again eventually."""
        if self.entry_s is not None:
            self.entry_s *= 0.95
