"""The garbage collector while a process starts."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from stoker.engine import garbage


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def test_it_looks_rarely_and_then_as_usual() -> None:
    usual = gc.get_threshold()
    garbage.look_rarely()
    assert gc.isenabled()
    assert gc.get_threshold()[0] > 10 * usual[0] > 0
    garbage.look_as_usual()
    assert gc.get_threshold() == usual


def test_what_a_start_has_made_is_not_looked_at_again() -> None:
    garbage.look_rarely()
    kept = [[] for _ in range(1000)]
    garbage.settle()
    assert gc.get_freeze_count() >= len(kept)
    assert not any(found is kept for found in gc.get_objects())
