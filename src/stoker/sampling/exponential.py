"""e^x for x <= 0, and sums of it, by a fixed sequence of operations: the same bits on every machine.

The results of NumPy's own `exp` and `sum` depend on the CPU's instruction set. The C++ code in `native/sampling.inl`
computes the same as this module, operation by operation.
"""

from __future__ import annotations

from math import factorial

import numpy as np
from numpy.typing import NDArray

_LEAST = -708.0
"""Value of x below which e^x is taken as 0."""

_LOG2_E = 1.4426950408889634
_LN_2 = (0.6931471803691238, 1.9082149292705877e-10)
"""ln 2 in two parts: the product of a small integer and the first part is exact."""

_TAYLOR = tuple(1 / factorial(n) for n in range(13, -1, -1))

_LANES, _PART = 16, 1024
_PARTS_AT_ONCE = 4


def exp(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """e^x for x <= 0, not NaN, with an error of at most 2 units in the last place.

    With x = n ln 2 + r and |r| <= ln(2)/2, the result is 2^n times the Taylor polynomial of e^r.
    """
    y = np.maximum(x, _LEAST)
    n = np.rint(y * _LOG2_E)
    r = (y - n * _LN_2[0]) - n * _LN_2[1]
    p = np.full_like(r, _TAYLOR[0])
    for coefficient in _TAYLOR[1:]:
        p *= r
        p += coefficient
    return np.where(x < _LEAST, 0.0, np.ldexp(p, n.astype(np.int32)))


def exp_sum(values: NDArray[np.floating], peak: float) -> float:
    """The sum of exp(value - peak) over all values; no value may be above `peak`.

    ```
    part 0   lane[i] = w[i] + w[16 + i] + w[32 + i] + …       total[i] = lane of part 0 + lane of part 1 + …
    part 1   the next 1024 values, and so on                  sum = total[0] + total[1] + … + total[15]
    ```
    """
    total: NDArray[np.float64] = np.zeros(_LANES)
    # A wide temporary array costs more than the sum.
    for start in range(0, values.size, _PARTS_AT_ONCE * _PART):
        some = values[start : start + _PARTS_AT_ONCE * _PART]
        weights = np.zeros((-(-some.size // _PART), _PART // _LANES, _LANES))
        weights.reshape(-1)[: some.size] = exp(np.subtract(some, peak, dtype=np.float64))
        for lanes in np.cumsum(weights, axis=1)[:, -1]:
            total += lanes
    return float(np.cumsum(total)[-1])
