from __future__ import annotations

from math import inf

import pytest

from stoker.cache.disk_queues import Backlog, ReadAhead, Wanted

A, B, C = b"a", b"b", b"c"
URGENT_BYTES = 64 * 2**20


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


def test_whoever_waits_is_told_when_his_last_one_is_there() -> None:
    wanted = Wanted()
    wanted.add([A, B], until=10.0)
    wanted.add([C], until=20.0)
    assert wanted.first == A
    assert [wanted.discard(key) for key in (A, B)] == [False, True]
    assert wanted.first == C
    assert wanted.discard(C)
    assert not wanted
    assert not wanted.discard(C)


def test_nobody_waits_for_ever() -> None:
    wanted = Wanted()
    wanted.add([A], until=10.0)
    wanted.add([A, B], until=12.0)
    assert not wanted.is_late(A, now=11.0)
    assert wanted.is_any_coming([C, B], now=11.0)
    assert not wanted.is_any_coming([A, B], now=12.0)
    assert not wanted.is_any_coming([C], now=0.0)
    wanted.clear()
    assert not wanted


def test_it_rests_seven_times_as_long_as_it_kept_a_core_unless_nobody_computes() -> None:
    ahead = ReadAhead()
    assert ahead.at(quiet_from=5.0) == inf
    ahead.extend([A, B])
    assert ahead.take() == A
    ahead.note(100, cpu_s=0.5, now=10.0)
    assert ahead.at(quiet_from=20.0) == 13.5
    assert ahead.at(quiet_from=11.0) == 11.0
    assert ahead.is_urgent
    ahead.clear()
    assert (ahead.at(quiet_from=11.0), ahead.is_urgent) == (inf, False)


def test_what_is_not_urgent_waits_until_nobody_computes() -> None:
    ahead = ReadAhead()
    ahead.extend([A])
    ahead.note(URGENT_BYTES, cpu_s=0.0, now=0.0)
    assert ahead.at(quiet_from=20.0) == 20.0
    assert not ahead.is_urgent
