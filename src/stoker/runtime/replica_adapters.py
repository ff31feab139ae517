"""Changes the LoRA adapters of a model with replicas, on all of them or on none. It routes nothing.

```
first running replica ---> other running replicas ---> replicas that restart or are added later
  refused: no change         refused: all undone         load what the others have
```
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from stoker.engine.cards import AdapterCard
from stoker.engine.config import AdapterSpec
from stoker.engine.question_messages import ChangeAdapters
from stoker.errors import AdapterNotFound, EngineCrashed, ModelNotLoaded, StokerError
from stoker.runtime.base import Runtime
from stoker.runtime.replica_set import ReplicaSet

logger = logging.getLogger(__name__)


class ReplicaAdapters:
    """The adapters of one model. Belongs to one event loop.

    A change that has begun must not be cancelled: replicas would differ.

    Args:
        replicas: the model's replicas.
    """

    def __init__(self, replicas: ReplicaSet) -> None:
        self._replicas = replicas
        self._changing = asyncio.Lock()
        self.cards: list[AdapterCard] | None = None
        """The adapters that all replicas have loaded; None = the configured ones."""

    async def change(self, change: ChangeAdapters) -> list[AdapterCard]:
        """Changes the adapters of every replica; returns the adapters that are loaded afterwards.

        Raises:
            StokerError: a replica refused the change, which is then undone on all; or no replica can answer.
        """
        if change.is_empty:
            return await _change(self._replicas.answering()[0].runtime, change)
        async with self._changing:
            first = self._replicas.answering()[0].runtime
            before = await _change(first, ChangeAdapters())
            cards = await _change(first, change)
            done = [first]
            try:
                while others := [r.runtime for r in self._replicas.computing() if r.runtime not in done]:
                    done.append(others[0])
                    await _follow(others[0], _like(change, cards), cards)
            except StokerError as error:
                logger.warning("a replica refused a change of adapters, which is undone: %s", error.message)
                for runtime in done:
                    await _undo(runtime, _undone(change, before), before)
                raise
            # No replica can have become ready since `computing` was last called: there was no `await` since.
            self.cards = cards
            self._replicas.begin_with(_specs(cards))
        return cards


async def _change(runtime: Runtime, change: ChangeAdapters) -> list[AdapterCard]:
    return (await runtime.ask(change)).adapters


def _like(change: ChangeAdapters, cards: list[AdapterCard]) -> ChangeAdapters:
    """The same change for another replica: an adapter has one id on all replicas."""
    if change.load is None:
        return change
    (adapter_id,) = (card.adapter_id for card in cards if card.name == change.load.name)
    return msgspec.structs.replace(change, load=msgspec.structs.replace(change.load, adapter_id=adapter_id))


def _undone(change: ChangeAdapters, before: list[AdapterCard]) -> ChangeAdapters:
    """The change that undoes `change`. An unload needs none: only the first replica can refuse it."""
    scales = {card.adapter_id: card.scale for card in before} if change.scales is not None else None
    return ChangeAdapters(unload=None if change.load is None else change.load.name, scales=scales)


async def _follow(runtime: Runtime, change: ChangeAdapters, cards: list[AdapterCard]) -> None:
    """Applies the change to a further replica; one that crashes meanwhile restarts with the new adapters."""
    try:
        await _change(runtime, change)
    except (EngineCrashed, ModelNotLoaded):
        runtime.begin_with(_specs(cards))
    except AdapterNotFound:
        if change.unload is None:
            raise


async def _undo(runtime: Runtime, change: ChangeAdapters, before: list[AdapterCard]) -> None:
    try:
        await _change(runtime, change)
    except AdapterNotFound:
        return  # this replica refused the change, so there is nothing to undo
    except StokerError:
        runtime.begin_with(_specs(before))


def _specs(cards: list[AdapterCard]) -> list[AdapterSpec]:
    return [card.as_spec() for card in cards]
