"""How much memory this process may still take, by what the kernel and its control groups say."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")


def available_memory(proc: Path = _PROC, cgroup: Path = _CGROUP) -> int:
    """Bytes that can be had without swapping; file cache that can be dropped counts as available.

    Where the system does not say (not Linux), all physical memory; if that is unknown too, a very large number: a
    guess must not refuse a model.

    Args:
        proc: where procfs is mounted.
        cgroup: where the control groups (version 1 or 2) are mounted.
    """
    return min([_available_in_system(proc), *_left_in_cgroups(proc, cgroup)])


def _available_in_system(proc: Path) -> int:
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return sys.maxsize


def _left_in_cgroups(proc: Path, cgroup: Path) -> Iterator[int]:
    """What each limit above this process leaves; a container sees itself as the root."""
    yield from _left_below(cgroup, _membership(proc, ""), "memory.max", "memory.current", "inactive_file")
    yield from _left_below(
        cgroup / "memory",
        _membership(proc, "memory"),
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    )


def _left_below(root: Path, group: str, limit_name: str, used_name: str, droppable: str) -> Iterator[int]:
    """What the limits of `root` and of each control group on the way down to `group` leave."""
    names = group.split("/") if group else []
    for depth in range(len(names) + 1):
        directory = root.joinpath(*names[:depth])
        limit, used = _number(directory / limit_name), _number(directory / used_name)
        if limit is not None and used is not None:
            yield max(0, limit - used + _stat(directory, droppable))


def _membership(proc: Path, controller: str) -> str:
    """The control group of this process, relative to their root. Version 2 names no controller."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return ""
    fields = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    return next((group.strip("/") for _, names, group in fields if controller in names.split(",")), "")


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # ValueError: "max", no limit
        return None


def _stat(directory: Path, name: str) -> int:
    try:
        pairs = [line.split() for line in (directory / "memory.stat").read_text().splitlines()]
        return next((int(value) for key, value in pairs if key == name), 0)
    except (OSError, ValueError):
        return 0
