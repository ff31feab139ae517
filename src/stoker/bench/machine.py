"""What this machine is, for the head of a file of results."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

from stoker.bench.results import Machine


def this_machine() -> Machine:
    """As far as the system says; see `Machine`."""
    return Machine(
        cpu=_cpu_name(),
        num_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        system=f"{platform.system()} {platform.release()}",
        python=".".join(map(str, sys.version_info[:3])),
        load_before=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    )


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
