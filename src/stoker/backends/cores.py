"""How many threads are worth computing with: the cores that this process really has. It starts none."""

from __future__ import annotations

import os
from pathlib import Path

_SYSTEM = Path("/sys")


def usable_cores(system: Path = _SYSTEM) -> int:
    """Physical cores that this process may run on, at most as many as its control group pays for; at least 1.

    Two threads on one core share its arithmetic units, so a second one makes matrix products no faster.

    Args:
        system: where sysfs is mounted.
    """
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    topology = system / "devices" / "system" / "cpu"
    cores = {_read(topology / f"cpu{cpu}" / "topology" / "thread_siblings_list") or str(cpu) for cpu in cpus}
    return max(1, min(len(cores), _quota(system / "fs" / "cgroup")))


def _quota(cgroup: Path) -> int:
    """Whole CPUs that a container may use (`docker run --cpus`), in control groups of version 2 or 1."""
    quota, _, period = _read(cgroup / "cpu.max").partition(" ")
    if not period:
        quota = _read(cgroup / "cpu" / "cpu.cfs_quota_us")
        period = _read(cgroup / "cpu" / "cpu.cfs_period_us")
    if not (quota.isdigit() and period.isdigit() and int(period) > 0):
        return os.cpu_count() or 1  # "max", -1, or nothing there: no limit
    return -(-int(quota) // int(period))


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
