"""Which cores this process really has and shares, and which memory is near to them. It starts no thread."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

SHARED_CORES = "STOKER_SHARED_CORES"
"""The environment variable that names the file by which processes share their cores; see `native/cores.hpp`."""
AFFINITY = "STOKER_NATIVE_AFFINITY"
"""The environment variable that says whether threads stay on their cores: `1` = they do."""
_SYSTEM = Path("/sys")


def usable_cores(system: Path = _SYSTEM) -> int:
    """Physical cores that this process may run on, at most as many as its control group pays for; at least 1.

    Two threads on one core share its arithmetic units, so a second one makes matrix products no faster.

    Args:
        system: where sysfs is mounted.
    """
    return max(1, min(len(_first_cpus(system)), _quota(system / "fs" / "cgroup")))


def cpus_to_stay_on(threads: int, system: Path = _SYSTEM) -> list[int]:
    """One CPU for each thread, each on a core of its own; nothing unless there are exactly as many usable cores.

    Args:
        threads: how many compute.
        system: where sysfs is mounted.
    """
    cpus = _first_cpus(system)
    fit = hasattr(os, "sched_getaffinity") and threads == len(cpus) == usable_cores(system)
    return cpus if fit and os.environ.get(AFFINITY) == "1" else []


def memory_nodes(system: Path = _SYSTEM) -> list[int]:
    """The nodes of memory (NUMA) that belong to the CPUs on which this process may run, in ascending order.

    Args:
        system: where sysfs is mounted.

    Returns:
        Nothing where the system does not say; one node on most machines.
    """
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()
    folder = system / "devices" / "system" / "node"
    return [node for node in _listed(folder / "has_memory") if cpus & set(_listed(folder / f"node{node}" / "cpulist"))]


def environment_of_sharers() -> dict[str, str]:
    """Variables for the environment of processes that share the cores: one file in memory for all of them.

    Empty where there are no such files, or where the environment already names one.
    """
    path = "" if SHARED_CORES in os.environ else _shared_file()
    return {SHARED_CORES: path} if path else {}


@cache
def _shared_file() -> str:
    """Lives as long as this process; those that have mapped it keep it longer."""
    if not hasattr(os, "memfd_create"):
        return ""
    return f"/proc/{os.getpid()}/fd/{os.memfd_create('stoker-cores')}"


def _first_cpus(system: Path) -> list[int]:
    """The first CPU of each core that this process may run on."""
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    topology = system / "devices" / "system" / "cpu"
    cores = dict[str, int]()
    for cpu in sorted(cpus):
        siblings = _read(topology / f"cpu{cpu}" / "topology" / "thread_siblings_list") or str(cpu)
        cores.setdefault(siblings, cpu)
    return list(cores.values())


def _quota(cgroup: Path) -> int:
    """Whole CPUs that a container may use (`docker run --cpus`), in control groups of version 2 or 1."""
    quota, _, period = _read(cgroup / "cpu.max").partition(" ")
    if not period:
        quota = _read(cgroup / "cpu" / "cpu.cfs_quota_us")
        period = _read(cgroup / "cpu" / "cpu.cfs_period_us")
    if not (quota.isdigit() and period.isdigit() and int(period) > 0):
        return os.cpu_count() or 1  # "max", -1, or nothing there: no limit
    return -(-int(quota) // int(period))


def _listed(path: Path) -> list[int]:
    """The numbers of a file such as `0-3,8`."""
    found: list[int] = []
    for part in filter(None, _read(path).split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
