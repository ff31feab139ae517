from __future__ import annotations

from stoker.cache.host import HostTier


def test_least_recently_used_blocks_leave_first() -> None:
    host = HostTier(30)
    for key in (b"a", b"b", b"c"):
        assert host.put(key, b"0123456789") == []
    host.take(b"a")
    host.touch([b"b", b"unknown"])
    assert host.put(b"d", b"01234") == [b"c"]
    assert [key in host for key in (b"a", b"b", b"c", b"d")] == [True, True, False, True]
    assert host.num_bytes == 25


def test_looking_is_no_use() -> None:
    host = HostTier(20)
    host.put(b"a", b"0123456789")
    host.put(b"b", b"0123456789")
    assert host.peek(b"a") == b"0123456789"
    assert host.put(b"c", b"0") == [b"a"]


def test_a_block_larger_than_everything_is_not_taken_and_displaces_nothing() -> None:
    host = HostTier(10)
    host.put(b"a", b"0123")
    assert host.put(b"b", b"01234567890") == []
    assert b"a" in host
    assert b"b" not in host


def test_replacing_and_discarding_keep_the_count() -> None:
    host = HostTier(100)
    host.put(b"a", b"0123456789")
    host.put(b"a", b"01")
    assert (len(host), host.num_bytes) == (1, 2)
    host.discard(b"a")
    host.discard(b"a")
    assert (len(host), host.num_bytes) == (0, 0)
    assert host.take(b"a") is None


def test_only_the_first_use_counts_as_one_of_the_disk() -> None:
    host = HostTier(100)
    host.put(b"a", b"x", is_from_disk=True)
    assert [host.take(b"a"), host.take(b"a")] == [(b"x", True), (b"x", False)]


def test_what_nobody_has_asked_for_leaves_first_and_displaces_nothing() -> None:
    host = HostTier(20)
    host.put(b"a", b"01234")
    assert host.put_last_in_line(b"b", b"01234")
    assert host.put_last_in_line(b"c", b"01234")
    assert host.put_last_in_line(b"a", b"01234"), "it is here already"
    assert not host.put_last_in_line(b"d", b"012345")
    assert host.take(b"c") == (b"01234", True)
    assert host.put(b"e", b"0123456789") == [b"b"]
    assert [host.take(key) for key in (b"a", b"c")] == [(b"01234", False)] * 2
