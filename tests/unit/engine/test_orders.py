"""What a child reads from its stdin before it loads."""

from __future__ import annotations

import os

import msgspec
import pytest

from stoker.engine import orders
from stoker.engine.config import EngineConfig
from stoker.engine.protocol import Expect, Launch

LAUNCH = Launch(EngineConfig(model="m"), "commands", "events", environment={"A": "b"})


def said(monkeypatch: pytest.MonkeyPatch, *messages: Expect | Launch) -> list[str]:
    """Puts these on stdin, with its end behind them, and takes orders; what was prepared meanwhile."""
    reader, writer = os.pipe()
    os.write(writer, b"".join(msgspec.json.encode(message) + b"\n" for message in messages))
    os.close(writer)
    monkeypatch.setattr(orders, "_STDIN", reader)
    prepared: list[str] = []
    try:
        assert orders.await_launch(prepared.append) == LAUNCH
    finally:
        os.close(reader)
    return prepared


@pytest.mark.parametrize("max_read", [1, 7, 65536])
def test_what_is_expected_is_prepared_before_the_launch(monkeypatch: pytest.MonkeyPatch, max_read: int) -> None:
    monkeypatch.setattr(orders, "_MAX_READ", max_read)
    assert said(monkeypatch, LAUNCH) == []
    assert said(monkeypatch, Expect("/m.gguf"), LAUNCH) == ["/m.gguf"]


def test_a_parent_that_goes_without_a_launch_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for messages in ((), (Expect("/m.gguf"),)):
        with pytest.raises(SystemExit) as caught:
            said(monkeypatch, *messages)
        assert caught.value.code == orders.EXIT_ORPHANED
