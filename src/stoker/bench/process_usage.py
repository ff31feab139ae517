"""Measures memory and CPU time of a process tree, and the machine's energy, from outside during a measurement."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from stoker.bench.energy import POWERCAP, EnergyMeter
from stoker.bench.figures import Resources
from stoker.lazy import lazy_module

if TYPE_CHECKING:
    import psutil
else:
    psutil = lazy_module("psutil")  # part of an extra

_SAMPLE_EVERY_S = 0.5
"""Time between samples. The kernel walks all page tables for a PSS, so more samples would slow the server down."""


class UsageMeter:
    """Holds the result of `watching`, which sets `resources` when its block has ended."""

    def __init__(self) -> None:
        self.resources = Resources()


@asynccontextmanager
async def watching(pid: int | None, *, powercap: Path = POWERCAP) -> AsyncGenerator[UsageMeter]:
    """Measures a process tree and this process, the load generator, until the block ends.

    Args:
        pid: root of the server's process tree. None = unknown: only this process's CPU time and the machine's energy.
        powercap: folder of the kernel's energy counters.
    """
    meter, own_cpu_s, energy = UsageMeter(), time.process_time(), EnergyMeter(powercap)
    root = None if pid is None else await asyncio.to_thread(_process, pid)
    if root is None:
        yield meter
        meter.resources = Resources(client_cpu_s=time.process_time() - own_cpu_s, energy_j=energy.joules())
        return
    cpu_s = await asyncio.to_thread(_cpu_s, root)
    peak = _Peak(root)
    sampling = asyncio.create_task(peak.follow())
    try:
        yield meter
        # The client's CPU time includes the sampling, so that its cost is visible.
        await peak.take()
        own_cpu_s = time.process_time() - own_cpu_s
        used_s = peak.cpu_s - cpu_s
        meter.resources = Resources(
            peak_pss_bytes=peak.bytes or None,
            server_cpu_s=used_s,
            client_cpu_s=own_cpu_s,
            energy_j=energy.joules(),
        )
    finally:
        sampling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sampling


def pid_of(url: str) -> int | None:
    """Id of the process on this machine that listens at a local URL; None if there is none or it cannot be found."""
    parts = urlsplit(url)
    if parts.hostname not in ("127.0.0.1", "localhost", "::1"):
        return None
    port = parts.port or 80
    try:
        listening = [c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    except ModuleNotFoundError:
        return None
    except psutil.Error:
        return None
    return next((c.pid for c in listening if c.laddr and c.laddr.port == port), None)


class _Peak:
    def __init__(self, root: psutil.Process) -> None:
        self._root = root
        self.bytes = 0
        self.cpu_s = 0.0
        """The largest CPU time of all samples, in seconds: a process may end before the block does."""

    async def follow(self) -> None:
        while True:
            await self.take()
            await asyncio.sleep(_SAMPLE_EVERY_S)

    async def take(self) -> None:
        self.bytes = max(self.bytes, await asyncio.to_thread(_pss_bytes, self._root))
        self.cpu_s = max(self.cpu_s, await asyncio.to_thread(_cpu_s, self._root))


def _process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except ModuleNotFoundError:
        return None
    except psutil.Error:
        return None


def _tree(root: psutil.Process) -> list[psutil.Process]:
    try:
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []


def _cpu_s(root: psutil.Process) -> float:
    total = 0.0
    for process in _tree(root):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
            # Linux adds a child's time to its parent's when it has been waited for.
            total += getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
    return total


def _pss_bytes(root: psutil.Process) -> int:
    total = 0
    for process in _tree(root):
        with contextlib.suppress(psutil.Error):
            memory = process.memory_full_info()
            total += getattr(memory, "pss", memory.rss)
    return total
