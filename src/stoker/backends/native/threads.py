"""How the threads of this process's decoders behave beside those of others. It starts none."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass

from stoker import _native
from stoker.backends.cores import SHARED_CORES, cpus_to_stay_on, memory_nodes, usable_cores

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Threads:
    """What decoders are opened with."""

    count: int
    """That compute, the caller's included."""
    cores: _native.SharedCores | None
    """By which all models of a server together never compute with more threads than there are cores."""
    cpus: list[int]
    """Where they stay; empty = anywhere."""


def spread_memory() -> bool:
    """Has memory that is taken from now on come from all nodes (NUMA) near to the cores of this process, in turn.

    Returns:
        Whether there are several, and it does.
    """
    nodes = memory_nodes()
    is_spread = len(nodes) > 1 and _native.take_memory_in_turn(nodes)
    if is_spread:
        logger.info("memory is taken from the nodes %s in turn", ", ".join(map(str, nodes)))
    return is_spread


def plan_threads(count: int) -> Threads:
    """Threads as the environment says, see `backends.cores`. More threads than cores are allowed.

    Args:
        count: threads that compute.
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
