"""The processes that descend from this one, as Linux lists them: Ray leaves some behind when it is shut down."""

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
"""A signal that changes nothing."""


class Member(NamedTuple):
    """A process. Its number may be given to another one later, which then starts at another time."""

    pid: int
    started: int


def descendants() -> list[Member]:
    """All processes below this one."""
    parents = {member: parent for member, parent, _ in _processes()}
    found, known = list[Member](), {os.getpid()}
    while below := [member for member, parent in parents.items() if parent in known and member.pid not in known]:
        found += below
        known.update(member.pid for member in below)
    return found


def end(family: list[Member], wait_s: float) -> None:
    """Returns when none of these runs any more: they may end by themselves, are then asked to, and at last killed.

    Args:
        family: the processes, which need not descend from this one any more.
        wait_s: the time for each of the first two.
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
    """Each process with its parent's number and its state."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                # What stands in parentheses, the name, may hold spaces and parentheses itself.
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                yield Member(int(folder.name), int(fields[19])), int(fields[1]), fields[0]
