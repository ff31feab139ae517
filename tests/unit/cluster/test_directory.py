"""Which replicas a front knows: the router keeps one that leaves until the last connection to it is closed."""

from __future__ import annotations

from stoker.cluster.directory import Directory


def test_router_hears_when_the_last_connection_is_closed() -> None:
    directory, heard = Directory(), list[str]()
    directory.listen("engine", lambda: heard.append("of an old router"))
    directory.listen("engine", lambda: heard.append("closed"))
    directory.note("engine", ["a"])
    directory.hold("a")
    directory.hold("a")
    directory.note("engine", [])
    directory.release("a")
    assert (directory.is_held("a"), directory.present("engine"), heard) == (True, frozenset(), [])
    directory.release("a")
    assert (directory.is_held("a"), heard) == (False, ["closed"])
