from __future__ import annotations

from stoker.cache.wanted import Wanted

A, B, C = b"a", b"b", b"c"


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
