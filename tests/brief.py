"""What `make test` leaves to `make test-all`: most cases of one kind, and most of the random examples."""

from __future__ import annotations

import os
from collections.abc import Collection, Hashable, Iterable
from typing import Any

import pytest

IS_BRIEF = os.environ.get("STOKER_TEST_BRIEF") == "1"
"""As `make test` runs the tests. Without it a random test tries all of its examples."""
_SHARE = 4


def examples(number: int) -> int:
    """How many random examples are tried of so many: a quarter of them in `make test`."""
    return -(-number // _SHARE) if IS_BRIEF else number


def mostly_slow(cases: Iterable[Hashable], quick: Collection[Hashable]) -> list[Any]:
    """Cases for `parametrize`, of which `make test` runs these alone."""
    cases = list(cases)
    assert set(quick) <= set(cases), "each of them is a case"
    return [case if case in quick else pytest.param(case, marks=pytest.mark.slow) for case in cases]


def slow_are(slow: Collection[Hashable], cases: Iterable[Hashable]) -> list[Any]:
    """Cases for `parametrize`, of which `make test` leaves out these."""
    cases = list(cases)
    return mostly_slow(cases, [case for case in cases if case not in slow])


def every(step: int, cases: Iterable[Any]) -> list[Any]:
    """Cases for `parametrize`, of which `make test` runs the first, and each one that is `step` behind the last."""
    return [case if not at % step else pytest.param(case, marks=pytest.mark.slow) for at, case in enumerate(cases)]
