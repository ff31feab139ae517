"""Ports of tests: each is given once, and the files that say so are closed at the end of the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.ports import free_port

ROOT = Path(__file__).parents[2]


def test_no_port_is_given_twice() -> None:
    ports = [free_port() for _ in range(5)]
    assert len(set(ports)) == len(ports)


def test_nothing_stays_open_at_the_end() -> None:
    command = [sys.executable, "-W", "always", "-c", "from tests.ports import free_port; free_port()"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "ResourceWarning" not in ended.stderr
