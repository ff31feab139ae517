"""Instances on their way out: each is closed when its last request has ended. It decides nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from stoker.runtime.instance import Instance

logger = logging.getLogger(__name__)


class Leaving:
    """Instances that are being unloaded. Belongs to one event loop; cancelling a waiter does not stop the unloading."""

    def __init__(self) -> None:
        self._tasks: dict[Instance, asyncio.Task[None]] = {}
        self._hurry = asyncio.Event()

    @property
    def instances(self) -> Mapping[Instance, asyncio.Task[None]]:
        """Instances that still occupy memory, each with the task that closes it."""
        return self._tasks

    def close_soon(self, instance: Instance, drain_s: float) -> asyncio.Task[None]:
        """Closes an instance when it is idle, or after `drain_s`; then its requests end with an error."""
        task = self._tasks[instance] = asyncio.create_task(self._close(instance, drain_s), name="stoker-unload")
        task.add_done_callback(lambda task: self._note_end(instance, task))
        return task

    async def close(self) -> None:
        """Closes them now; returns when all are closed."""
        self._hurry.set()
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    async def _close(self, instance: Instance, drain_s: float) -> None:
        if drain_s:
            await drained(instance, drain_s, self._hurry)
        await instance.served.runtime.close()

    def _note_end(self, instance: Instance, task: asyncio.Task[None]) -> None:
        del self._tasks[instance]
        if not task.cancelled() and (fault := task.exception()) is not None:
            logger.error("%s could not be closed", instance.served.model_id, exc_info=fault)


async def drained(instance: Instance, limit_s: float, hurry: asyncio.Event | None = None) -> None:
    """Returns when the instance is idle, at the latest after `limit_s`, or when `hurry` is set."""
    waits = [asyncio.ensure_future(event.wait()) for event in (instance.idle, hurry) if event is not None]
    try:
        done, _ = await asyncio.wait(waits, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    if not done:
        logger.warning("%s still has requests after %g s: they are ended", instance.served.model_id, limit_s)
