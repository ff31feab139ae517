from __future__ import annotations

from math import inf

from stoker.cache.read_ahead import ReadAhead

A, B = b"a", b"b"
URGENT_BYTES = 64 * 2**20


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
