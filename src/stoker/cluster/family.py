"""Finds and ends descendants of this process, on Linux: Ray leaves some behind when it is shut down."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_POLL_S = 0.05
_NONE = 0
"""Signal 0, which has no effect."""


class Member(NamedTuple):
    """A process, identified by its id and start time: the kernel may later give the id to another process."""

    pid: int
    started: int


def descendants() -> list[Member]:
    """All descendants of this process: children, grandchildren and so on."""
    parents = {member: parent for member, parent, _ in _processes()}
    found, known = list[Member](), {os.getpid()}
    while below := [member for member, parent in parents.items() if parent in known and member.pid not in known]:
        found += below
        known.update(member.pid for member in below)
    return found


def end(family: list[Member], wait_s: float) -> None:
    """Ends processes: waits for them to end by themselves, then sends SIGTERM and waits, then SIGKILL and waits.

    Args:
        family: the processes, which need not be descendants of this one any more.
        wait_s: maximum seconds to wait in each stage.
    """
    for number in (_NONE, signal.SIGTERM, signal.SIGKILL):
        for member in _running(family):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(member.pid, number)
        ends = time.monotonic() + wait_s
        while time.monotonic() < ends:
            if not _running(family):
                return
            time.sleep(_POLL_S)


def _running(family: list[Member]) -> list[Member]:
    alive = {member for member, _, state in _processes() if state != "Z"}
    return [member for member in family if member in alive]


def _processes() -> Iterator[tuple[Member, int, str]]:
    """All processes, each with its parent's id and its state."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                # The process name, in parentheses, may itself contain spaces and parentheses.
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                yield Member(int(folder.name), int(fields[19])), int(fields[1]), fields[0]
