"""How messages look on a terminal, and in a file."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import sys
import termios

import pytest

from stoker.cli.report import say

TEXT = "error: no model 'x': it is neither a known name nor /a/very/long/path/that/is/not/broken/in/two"


@pytest.mark.parametrize("columns", [30, 80])
def test_a_terminal_gets_whole_words(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with os.fdopen(master, "rb", buffering=0) as screen, os.fdopen(slave, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        say(f"\n  {TEXT}")
        lines = screen.read(1000).decode().replace("\r", "").splitlines()
    assert " ".join(lines).split() == TEXT.split()
    assert lines[1].startswith("  error:")
    assert all(len(line) <= columns or " " not in line for line in lines)
    assert len(lines) > 2


def test_a_file_gets_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    say(TEXT)
    assert file.getvalue() == f"{TEXT}\n"
