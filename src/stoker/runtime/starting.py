"""From a model's specification to a runtime that answers, however often its process dies on the way."""

from __future__ import annotations

import asyncio
import logging

from stoker.errors import EngineCrashed
from stoker.models.memory_plan import MemoryPlan
from stoker.runtime.base import Runtime
from stoker.runtime.model_spec import ModelSpec

logger = logging.getLogger(__name__)

_MAX_ATTEMPTS = 3
_PAUSE_S = 0.1
"""After the first attempt; it doubles."""


async def started(spec: ModelSpec, plan: MemoryPlan | None) -> Runtime:
    """A runtime that has loaded its model. A process that dies under it is tried again; whoever gets it closes it.

    Raises:
        StokerError: the model cannot be loaded; nothing is left running.
    """
    for attempt in range(1, _MAX_ATTEMPTS):
        try:
            return await _start(spec, plan)
        except EngineCrashed as error:
            pause_s = _PAUSE_S * 2 ** (attempt - 1)
            logger.warning("%s: %s while it was loaded; trying again in %.1f s", spec.model_id, error, pause_s)
            await asyncio.sleep(pause_s)
    return await _start(spec, plan)


async def _start(spec: ModelSpec, plan: MemoryPlan | None) -> Runtime:
    runtime = spec.make(plan)
    is_started = False
    try:
        await runtime.start()
        is_started = True
    finally:
        if not is_started:
            await runtime.close()
    return runtime
