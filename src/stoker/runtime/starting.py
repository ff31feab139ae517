"""Starts the runtime of a model specification, and tries again if its process dies while the model loads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from stoker.engine.config import AdapterSpec
from stoker.errors import EngineCrashed
from stoker.models.memory_plan import MemoryPlan
from stoker.runtime.base import Runtime
from stoker.runtime.model_spec import ModelSpec

logger = logging.getLogger(__name__)

_MAX_ATTEMPTS = 3
_PAUSE_S = 0.1
"""Pause after the first failed attempt, in seconds; it doubles after each further one."""
_LOOK_EVERY_S = 0.1
_STEP = 0.01


async def started(
    spec: ModelSpec,
    plan: MemoryPlan | None,
    adapters: Sequence[AdapterSpec] | None = None,
    tell: Callable[[float], None] = lambda part: None,
) -> Runtime:
    """A runtime that has loaded its model. The caller closes it; a process that dies while loading is started again.

    Args:
        spec: the model.
        plan: the memory that is promised to the model.
        adapters: adapters that are loaded at the start; None = the configured ones.
        tell: is called now and then with the loaded fraction of the weights, 0 … 1, which never falls.

    Raises:
        StokerError: the model cannot be loaded; nothing is left running.
    """
    tell = _Rising(tell)
    for attempt in range(1, _MAX_ATTEMPTS):
        try:
            return await _start(spec, plan, adapters, tell)
        except EngineCrashed as error:
            pause_s = _PAUSE_S * 2 ** (attempt - 1)
            logger.warning("%s: %s while it was loaded; trying again in %.1f s", spec.model_id, error, pause_s)
            await asyncio.sleep(pause_s)
    return await _start(spec, plan, adapters, tell)


class _Rising:
    """Reports progress only if it grew by 0.01 or reached 1, as a second attempt starts at 0 again."""

    def __init__(self, tell: Callable[[float], None]) -> None:
        self._tell = tell
        self._told = -1.0

    def __call__(self, part: float) -> None:
        if part >= self._told + _STEP or (part == 1.0 > self._told):
            self._told = part
            self._tell(part)


async def _start(
    spec: ModelSpec, plan: MemoryPlan | None, adapters: Sequence[AdapterSpec] | None, tell: Callable[[float], None]
) -> Runtime:
    runtime = spec.make(plan)
    if adapters is not None:
        runtime.begin_with(adapters)
    is_started = False
    telling = asyncio.create_task(_keep_telling(runtime, tell))
    try:
        await runtime.start()
        is_started = True
    finally:
        telling.cancel()
        if not is_started:
            await runtime.close()  # first, because any later `await` may be cancelled
        await asyncio.wait([telling])
    return runtime


async def _keep_telling(runtime: Runtime, tell: Callable[[float], None]) -> None:
    while True:
        part = runtime.health().loaded_part
        if part is not None:
            tell(part)
        await asyncio.sleep(_LOOK_EVERY_S)
