"""Attention temperature: factors of queries that depend on their position."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryScales:
    """The factor of a query grows logarithmically: `1 + slope * ln(1 + floor((position + offset) / period))`."""

    slope: float
    period: int
    offset: int = 0

    def table(self, num_positions: int) -> NDArray[np.float32]:
        """The factors of positions `0 … num_positions-1`."""
        steps = (np.arange(num_positions) + self.offset) // self.period
        return (1 + self.slope * np.log1p(steps)).astype(np.float32)
