"""Plans the compute threads of this process's decoders: their number, CPUs and memory. It starts no threads."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass

from stoker import _native
from stoker.backends.cores import SHARED_CORES, cpus_to_stay_on, memory_nodes, usable_cores

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Threads:
    """The thread settings with which decoders are created."""

    count: int
    """Number of threads that compute, including the calling thread."""
    cores: _native.SharedCores | None
    """Limits the computing threads of all models of a server together to the number of cores; None = no limit."""
    cpus: list[int]
    """CPUs to which the threads are pinned; empty = threads are not pinned."""


def spread_memory() -> bool:
    """Makes memory that is allocated from now on interleave over all NUMA nodes near the cores of this process.

    Returns:
        Whether there are several such nodes, and memory is interleaved.
    """
    nodes = memory_nodes()
    is_spread = len(nodes) > 1 and _native.take_memory_in_turn(nodes)
    if is_spread:
        logger.info("memory is taken from the nodes %s in turn", ", ".join(map(str, nodes)))
    return is_spread


def plan_threads(count: int) -> Threads:
    """Returns thread settings according to the environment, see `backends.cores`. More threads than cores are allowed.

    Args:
        count: number of threads that compute.
    """
    return Threads(count, _shared_cores(max(count, usable_cores())), cpus_to_stay_on(count))


def _shared_cores(num_cores: int) -> _native.SharedCores | None:
    path = os.environ.get(SHARED_CORES, "")
    if not path:
        return None
    try:
        return _native.SharedCores(path, num_cores)
    except RuntimeError as error:
        logger.warning("the models of this server cannot share its cores: %s", error)
        return None
