"""How the threads of this process's decoders behave beside those of others. It starts none."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass

from stoker import _native
from stoker.backends.cores import SHARED_CORES, cpus_to_stay_on, usable_cores

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
