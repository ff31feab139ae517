"""Lets the models of a server lend each other unused KV cache memory. `kv_shares` computes how much each may use.

```
while requests run, 4 times a second:   ask each engine ---> share out ---> lower limits ---> raise others
```

A limit is raised only after the engine that gives up the memory has confirmed that it holds no more than its own new
limit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from stoker.engine.question_messages import KVShare, ShareKV
from stoker.errors import StokerError
from stoker.runtime.instance import Instance
from stoker.runtime.kv_shares import PoolUse, share_out

logger = logging.getLogger(__name__)

EVERY_S = 0.25
"""Seconds between two rounds while a model has requests. A model gets its share within that time plus two steps."""
_QUIET_AFTER_S = 60.0
"""Seconds without a request after which the cached conversations of a model make room for those of other models."""
_ASK_S = 5.0
"""Timeout of a question to an engine. An engine that does not answer is in a long step, or gone: its limit stays."""
_WORTHWHILE_PART = 32
"""A limit is raised by at least the share divided by this number, unless requests need more than the limit."""


@dataclass(slots=True)
class _Pool:
    """The state of one model's KV pool, as its engine last described it."""

    instance: Instance
    known: KVShare
    """The engine's newest answer."""
    answers: bool
    """Whether the engine has answered in this round."""


class KVLending:
    """The task that moves KV limits between the models of a server. Belongs to one event loop.

    Args:
        instances: returns the loaded instances and those that are being unloaded.
        clock: seconds; only differences count.
    """

    def __init__(self, instances: Callable[[], Iterable[Instance]], clock: Callable[[], float]) -> None:
        self._instances = instances
        self._clock = clock
        self._pools: dict[Instance, _Pool] = {}
        self._settled: Instance | None = None
        """The only model that takes part, once its limit is its share: then nothing is left to move."""
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Starts the task."""
        self._task = asyncio.create_task(self._run(), name="stoker-kv-lending")

    async def close(self) -> None:
        """Ends the task; limits stay as they are. Calling it twice is allowed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def wake(self) -> None:
        """Wakes the task: a model got a request, was loaded, or was unloaded."""
        self._changed.set()

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            lenders = [each for each in self._instances() if each.served.runtime.card.most_kv_tokens]
            is_busy = len(lenders) > 1 and not all(instance.is_idle for instance in lenders)
            if lenders != [self._settled]:
                await self._look_safely(lenders)
            await asyncio.sleep(EVERY_S)
            if not is_busy:
                await self._changed.wait()

    async def _look_safely(self, lenders: Iterable[Instance]) -> None:
        """Runs a round and logs its errors: the task must go on, as a request may wait for memory of the next round."""
        try:
            await self.look(lenders)
        except Exception:
            logger.exception("a look at the KV pools failed")

    async def look(self, lenders: Iterable[Instance]) -> None:
        """Runs one round: asks how the pools are used, and moves the limits.

        Args:
            lenders: the models that take part; memory of other models is not counted.
        """
        answers = {instance: self._ask(instance, None) for instance in lenders}
        found = dict(zip(answers, await asyncio.gather(*answers.values()), strict=True))
        before, self._pools = self._pools, {}
        for instance, answer in found.items():
            known = answer or (before[instance].known if instance in before else None)
            if known is not None:
                self._pools[instance] = _Pool(instance, known, answers=answer is not None)
        await self._move([*self._pools.values()])
        alone = next(iter(self._pools.values())) if len(self._pools) == 1 else None
        self._settled = alone.instance if alone is not None and alone.known.limit == alone.known.share else None

    async def _move(self, pools: list[_Pool]) -> None:
        goals = share_out([self._use(pool) for pool in pools])
        left = sum(pool.known.share - pool.known.limit for pool in pools)
        raised = [(pool, goal) for pool, goal in zip(pools, goals, strict=True) if _is_worthwhile(pool, goal)]
        if left < sum(goal - pool.known.limit for pool, goal in raised) or left < 0:
            lowered = [(p, goal) for p, goal in zip(pools, goals, strict=True) if p.answers and goal < p.known.limit]
            await asyncio.gather(*(self._set_limit(pool, goal) for pool, goal in lowered))
            left = sum(pool.known.share - pool.known.limit for pool in pools)
        for pool, goal in raised:
            more = min(goal - pool.known.limit, left)
            if more > 0:
                left -= more
                await self._set_limit(pool, pool.known.limit + more)

    def _use(self, pool: _Pool) -> PoolUse:
        known, instance = pool.known, pool.instance
        is_quiet = instance.is_idle and self._clock() - instance.used_at > _QUIET_AFTER_S
        use = PoolUse(
            share=known.share,
            least=known.least,
            most=known.most,
            limit=known.limit,
            held=known.held,
            needed=known.needed,
            is_short=known.is_short,
            is_quiet=is_quiet,
        )
        return use if pool.answers else use.as_it_is

    async def _set_limit(self, pool: _Pool, limit: int) -> None:
        is_larger = limit > pool.known.limit
        answer = await self._ask(pool.instance, limit)
        if answer is not None:
            pool.known = answer
        elif is_larger:  # the engine may have applied it
            pool.known = msgspec.structs.replace(pool.known, limit=limit)

    async def _ask(self, instance: Instance, limit: int | None) -> KVShare | None:
        """The engine's answer; None = it did not answer."""
        try:
            async with asyncio.timeout(_ASK_S):
                return await instance.served.runtime.ask(ShareKV(limit=limit))
        except (StokerError, TimeoutError) as error:
            logger.debug("%s does not say how it uses its KV pool: %s", instance.served.model_id, error)
            return None


def _is_worthwhile(pool: _Pool, goal: int) -> bool:
    more, known = goal - pool.known.limit, pool.known
    return pool.answers and more > 0 and (more * _WORTHWHILE_PART >= known.share or known.needed > known.limit)
