"""The LoRA adapters of a model with replicas: what is changed is changed in all of them, or in none. It routes nothing.

```
first one computing ---> the others that compute ---> those that come back or are added later
  refused: nothing          refused: undone             begin with what the others have
```
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

import msgspec

from stoker.engine.cards import AdapterCard
from stoker.engine.config import AdapterSpec
from stoker.errors import AdapterNotFound, EngineCrashed, ModelNotLoaded, StokerError
from stoker.runtime.base import Runtime
from stoker.runtime.fleet import Fleet

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Change:
    load: AdapterSpec | None
    unload: str | None
    scales: dict[int, float] | None

    async def make(self, runtime: Runtime) -> list[AdapterCard]:
        return await runtime.change_adapters(load=self.load, unload=self.unload, scales=self.scales)

    def like(self, cards: list[AdapterCard]) -> _Change:
        """The same for the next one: an adapter has one id everywhere."""
        if self.load is None:
            return self
        (adapter_id,) = (card.adapter_id for card in cards if card.name == self.load.name)
        return _Change(msgspec.structs.replace(self.load, adapter_id=adapter_id), self.unload, self.scales)

    def undone(self, before: list[AdapterCard]) -> _Change:
        """What takes it back. Nobody but the first one can refuse to remove a name."""
        scales = {card.adapter_id: card.scale for card in before} if self.scales is not None else None
        return _Change(None, None if self.load is None else self.load.name, scales)


class ReplicaAdapters:
    """Belongs to one event loop. A change that has begun must not be cancelled: replicas would differ.

    Args:
        fleet: the replicas.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._changing = asyncio.Lock()
        self.cards: list[AdapterCard] | None = None
        """What all have loaded; None = what they were configured with."""

    async def present(self) -> list[AdapterCard]:
        """What is loaded.

        Raises:
            StokerError: no replica can answer.
        """
        return await self._fleet.answering()[0].runtime.change_adapters()

    async def change(
        self, *, load: AdapterSpec | None, unload: str | None, scales: dict[int, float] | None
    ) -> list[AdapterCard]:
        """What is loaded afterwards, in every replica.

        Raises:
            StokerError: one of them refused it; then it is done in none.
        """
        async with self._changing:
            first = self._fleet.answering()[0].runtime
            before = await first.change_adapters()
            change = _Change(load, unload, scales)
            cards = await change.make(first)
            done = [first]
            try:
                while others := [r.runtime for r in self._fleet.computing() if r.runtime not in done]:
                    done.append(others[0])
                    await _follow(others[0], change.like(cards), cards)
            except StokerError as error:
                logger.warning("a replica refused a change of adapters, which is undone: %s", error.message)
                for runtime in done:
                    await _undo(runtime, change.undone(before), before)
                raise
            # Nobody can have become ready since the last look: there was nothing to wait for.
            self.cards = cards
            self._fleet.begin_with(_specs(cards))
        return cards


async def _follow(runtime: Runtime, change: _Change, cards: list[AdapterCard]) -> None:
    """One that dies under it comes back with what it is to have."""
    try:
        await change.make(runtime)
    except (EngineCrashed, ModelNotLoaded):
        runtime.begin_with(_specs(cards))
    except AdapterNotFound:
        if change.unload is None:
            raise


async def _undo(runtime: Runtime, change: _Change, before: list[AdapterCard]) -> None:
    try:
        await change.make(runtime)
    except AdapterNotFound:
        return  # it was the one that refused
    except StokerError:
        runtime.begin_with(_specs(before))


def _specs(cards: list[AdapterCard]) -> list[AdapterSpec]:
    return [card.as_spec() for card in cards]
