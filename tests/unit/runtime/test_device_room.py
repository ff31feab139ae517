"""Models that lie on one device make room for each other there, whatever the machine's own memory has."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from stoker.errors import ResourceExhausted
from stoker.models.memory_plan import MemoryNeeds
from stoker.models.offload import LayerSizes, OwnMemory
from tests.unit.runtime.fake_models import FakeModel, Machine, live, running, settled

LAYER = 10


@dataclass
class Card:
    """A device, and the models that may lie on it."""

    size: int
    models: list[OnCard] = field(default_factory=list["OnCard"])

    @property
    def room(self) -> int:
        return self.size - sum(model.device_bytes for model in self.models)


@dataclass
class OnCard(FakeModel):
    """A model of blocks of ten bytes, and an output, which takes as much."""

    card: Card = field(default_factory=lambda: Card(100))
    asked: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.card.models.append(self)

    @property
    def device_bytes(self) -> int:
        plans = [runtime.plan for runtime in self.made if runtime.is_loaded]
        return sum(plan.device_bytes for plan in plans if plan is not None)

    def _measure(self) -> MemoryNeeds:
        sizes = LayerSizes(embedding=0, blocks=(LAYER,) * (self.size // LAYER - 1), output=LAYER)
        own = OwnMemory(sizes=sizes, room=self.card.room, names="CUDA0", asked=self.asked)
        return replace(super()._measure(), devices=own)


def on_card(machine: Machine) -> dict[str, int]:
    return {model.name: model.device_bytes for model in machine.models if isinstance(model, OnCard)}


@live
async def test_the_least_recently_used_leaves_the_device_for_another():
    card = Card(100)
    async with running(*(OnCard(name, 50, card=card) for name in "abc")) as machine:
        await machine.use("a")
        machine.advance(1)
        await machine.use("b")
        assert on_card(machine) == {"a": 50, "b": 50, "c": 0}
        machine.advance(1)
        await machine.use("c")
        assert on_card(machine) == {"a": 0, "b": 50, "c": 50}, "the machine's memory has room for all three"
        machine.advance(1)
        await machine.use("a")
        assert on_card(machine) == {"a": 50, "b": 0, "c": 50}


@live
async def test_a_model_on_the_device_that_is_in_use_is_waited_for():
    card = Card(60)
    async with running(OnCard("a", 50, card=card), OnCard("b", 50, card=card)) as machine:
        lease = await machine.registry.lease("a")
        waiting = await machine.queued("b")
        machine.advance(60)
        await settled()
        assert not waiting.done()
        lease.close()
        (await waiting).close()
        assert on_card(machine) == {"a": 0, "b": 50}


@live
async def test_beside_a_pinned_model_as_many_layers_as_fit_are_on_the_device():
    card = Card(70)
    a, b = OnCard("a", 50, card=card), OnCard("b", 50, card=card)
    async with running(a, b, specs=[a.spec(is_pinned=True), b.spec()]) as machine:
        await machine.use("a")
        await machine.use("b")
        assert on_card(machine) == {"a": 50, "b": 20}
        plan = b.made[-1].plan
        assert plan is not None
        assert plan.total_bytes == 30, "the rest is in the machine's memory"


@live
async def test_no_model_leaves_for_a_model_that_gets_no_more_layers_by_it():
    card = Card(100)
    async with running(OnCard("a", 50, card=card), FakeModel("ram", 20), OnCard("b", 50, card=card)) as machine:
        for name in ("a", "ram", "b"):
            await machine.use(name)
        assert machine.states() == dict.fromkeys(("a", "ram", "b"), "loaded")


@live
async def test_layers_that_the_user_wants_are_refused_if_no_model_can_make_room_for_them():
    card = Card(70)
    a, b = OnCard("a", 50, card=card), OnCard("b", 50, card=card, asked=-1)
    async with running(a, b, specs=[a.spec(is_pinned=True), b.spec()]) as machine:
        await machine.use("a")
        with pytest.raises(ResourceExhausted, match="--gpu-layers 2 fits"):
            await machine.use("b")
        assert on_card(machine) == {"a": 50, "b": 0}


@live
async def test_layers_that_the_user_wants_get_their_room_from_another_model():
    card = Card(70)
    a, b = OnCard("a", 50, card=card), OnCard("b", 50, card=card, asked=-1)
    async with running(a, b) as machine:
        await machine.use("a")
        machine.advance(1)
        await machine.use("b")
        assert on_card(machine) == {"a": 0, "b": 50}
