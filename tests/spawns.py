"""Which engine processes a test has started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from stoker.engine import spare


def record_spawns(monkeypatch: pytest.MonkeyPatch) -> list[spare.Process]:
    """All that are started from now on, in order."""
    started: list[spare.Process] = []
    spawn = spare.spawn

    def recorded(command: Sequence[str], environment: Mapping[str, str]) -> spare.Process:
        started.append(spawn(command, environment))
        return started[-1]

    monkeypatch.setattr(spare, "spawn", recorded)
    return started
