"""What tests of decoders are repeated with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from stoker import _native


def beside_the_reference(step: int, sizes: Iterable[Sequence[int]]) -> list[Any]:
    """Kernels and sizes of chunks, but for row by row with the plainest kernels: that is what all are compared with.

    `make test` runs the first sizes, and those that are `step` behind the last.
    """
    return [
        pytest.param(kernels, each, marks=[pytest.mark.slow] if at % step else [])
        for at, each in enumerate(sizes)
        for kernels in _native.kernel_names()
        if (kernels, each) != ("scalar", [1])
    ]
