"""The CPU cores that this process may use or shares with others, and the NUMA nodes near them. It starts no thread."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

SHARED_CORES = "STOKER_SHARED_CORES"
"""Environment variable that names the file through which processes share their cores; see `native/cores.hpp`."""
AFFINITY = "STOKER_NATIVE_AFFINITY"
"""Environment variable that determines whether threads are pinned to their cores: `1` = they are."""
_SYSTEM = Path("/sys")


def usable_cores(system: Path = _SYSTEM) -> int:
    """Number of physical cores that this process may use, within the CPU quota of its control group; at least 1.

    Two threads on one core share its arithmetic units, so a second one makes matrix products no faster.

    Args:
        system: where sysfs is mounted.
    """
    return max(1, min(len(_first_cpus(system)), _quota(system / "fs" / "cgroup")))


def cpus_to_stay_on(threads: int, system: Path = _SYSTEM) -> list[int]:
    """The CPUs to pin threads to, each on a core of its own; empty unless `AFFINITY` is `1` and threads fit the cores.

    Args:
        threads: number of threads that compute; it fits only if it equals the number of usable cores.
        system: where sysfs is mounted.
    """
    cpus = _first_cpus(system)
    fit = hasattr(os, "sched_getaffinity") and threads == len(cpus) == usable_cores(system)
    return cpus if fit and os.environ.get(AFFINITY) == "1" else []


def memory_nodes(system: Path = _SYSTEM) -> list[int]:
    """The NUMA nodes with memory that belong to the CPUs on which this process may run, in ascending order.

    Args:
        system: where sysfs is mounted.

    Returns:
        Numbers of nodes: one on most machines; none if the system does not list nodes.
    """
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()
    folder = system / "devices" / "system" / "node"
    return [node for node in _listed(folder / "has_memory") if cpus & set(_listed(folder / f"node{node}" / "cpulist"))]


def environment_of_sharers() -> dict[str, str]:
    """Environment variables for child processes that share the cores: they name one in-memory file for all of them.

    Empty if the system has no such files, or if the environment already names one.
    """
    path = "" if SHARED_CORES in os.environ else _shared_file()
    return {SHARED_CORES: path} if path else {}


@cache
def _shared_file() -> str:
    """An in-memory file that lives as long as this process, or as long as other processes have it mapped."""
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
        return os.cpu_count() or 1  # "max", -1, or missing: no limit
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
