from __future__ import annotations

from math import inf

import pytest

from stoker.cache.backlog import Backlog

A, B, C = b"a", b"b", b"c"


@pytest.fixture
def backlog() -> Backlog:
    return Backlog(max_s=2.0, max_bytes=250)


def test_the_oldest_is_due_after_a_while(backlog: Backlog) -> None:
    assert backlog.due_at == inf
    backlog.add(A, 100, now=10.0)
    backlog.add(B, 100, now=11.0)
    backlog.add(A, 100, now=12.0)
    assert (backlog.oldest, backlog.due_at, len(backlog)) == (A, 12.0, 2), "also if it comes once more"
    assert backlog.discard(A)
    assert (backlog.oldest, backlog.due_at) == (B, 13.0)


def test_what_comes_together_is_due_together(backlog: Backlog) -> None:
    backlog.add(A, 100, now=10.01)
    backlog.add(B, 100, now=10.24)
    assert backlog.due_at == 12.0
    backlog.discard(A)
    assert backlog.due_at == 12.0


def test_of_too_much_the_oldest_is_due_at_once(backlog: Backlog) -> None:
    for key in (A, B, C):
        backlog.add(key, 100, now=0.0)
    assert backlog.due_at == -inf
    assert backlog.discard(C)
    assert backlog.due_at == 2.0
    assert not backlog.discard(C)
    assert backlog.due_at == 2.0


def test_what_is_elsewhere_already_does_not_wait(backlog: Backlog) -> None:
    for key in (A, B, C):
        backlog.add(key, 100, now=0.0)
    backlog.discard_all({A: 1, C: 1, b"other": 1})
    assert [key in backlog for key in (A, B, C)] == [False, True, False]
    assert backlog.due_at == 2.0
    backlog.clear()
    assert (len(backlog), backlog.due_at) == (0, inf)
