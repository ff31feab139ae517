"""Models without weights that are loaded when a test says so, on a machine whose memory and clock are its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, ParamSpec, cast

from stoker.engine.cards import AdapterCard, ModelCard
from stoker.engine.config import AdapterSpec
from stoker.engine.health import Health
from stoker.engine.question_messages import A, AdapterList, ChangeAdapters, Question, as_answer_to
from stoker.errors import AdapterNotFound, StokerError
from stoker.models.memory_plan import MemoryNeeds, MemoryPlan
from stoker.runtime.base import Runtime
from stoker.runtime.config import RegistryConfig
from stoker.runtime.registry import Lease, ModelSpec, Registry
from tests.waiting import run as in_a_loop
from tests.waiting import until

P = ParamSpec("P")


def live(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test on an event loop of its own, which bounds it."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        in_a_loop(test(*args, **kwargs))

    return run


class Clock:
    """Stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class LoadedModel:
    """What a `Runtime` does about being there; nobody asks it anything."""

    def __init__(self, model: FakeModel, plan: MemoryPlan | None) -> None:
        self.model = model
        self.plan = plan
        self.is_loaded = False
        self.num_closes = 0
        self.adapters: list[AdapterCard] = []

    @property
    def card(self) -> ModelCard:
        return ModelCard(
            self.model.name, "scripted", "", "", 1, 1, 1, 1, 1, 1, None, "", "", 0, 0, 0, adapters=self.adapters
        )

    def begin_with(self, adapters: Sequence[AdapterSpec]) -> None:
        self.adapters = [_loaded(spec, 0) for spec in adapters if spec.name not in self.model.lost_adapters]

    async def ask(self, question: Question[A]) -> A:
        change: object = question
        assert isinstance(change, ChangeAdapters)
        self.model.num_changing += 1
        await self.model.change_gate.wait()
        self.model.num_changing -= 1
        if change.unload is not None and change.unload not in [card.name for card in self.adapters]:
            raise AdapterNotFound("there is none", adapter=change.unload)
        self.adapters = [card for card in self.adapters if card.name != change.unload]
        if change.load is not None:
            self.adapters.append(_loaded(change.load, len(self.adapters)))
        return as_answer_to(question, AdapterList("q", list(self.adapters)))

    async def start(self) -> None:
        await self.model.gate.wait()
        if self.model.errors:
            raise self.model.errors.pop(0)
        self.is_loaded = True

    async def close(self) -> None:
        self.num_closes += 1
        await self.model.close_gate.wait()
        self.is_loaded = False

    def health(self) -> Health:
        self.model.num_looks += 1
        state = "ready" if self.is_loaded else "starting"
        return Health(is_ready=self.is_loaded, state=state, loaded_part=self.model.loaded_part)


@dataclass
class FakeModel:
    """One model of a test, and all that was ever loaded of it."""

    name: str
    size: int = 10
    """In whatever the machine's memory is counted."""
    pool_token_size: int = 0
    errors: list[StokerError] = field(default_factory=list[StokerError])
    """What the next attempts to load it end with."""
    measure_error: StokerError | None = None
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    """It is loaded once this is set, as it is from the beginning."""
    close_gate: asyncio.Event = field(default_factory=asyncio.Event)
    change_gate: asyncio.Event = field(default_factory=asyncio.Event)
    loaded_part: float | None = None
    num_looks: int = 0
    """At its health."""
    num_changing: int = 0
    """Changes of adapters that wait at this gate."""
    lost_adapters: set[str] = field(default_factory=set[str])
    """Whose files have gone."""
    made: list[LoadedModel] = field(default_factory=list[LoadedModel])

    def __post_init__(self) -> None:
        self.gate.set()
        self.close_gate.set()
        self.change_gate.set()

    @property
    def num_loaded(self) -> int:
        return sum(runtime.is_loaded for runtime in self.made)

    def spec(self, **fields: Any) -> ModelSpec:
        given: dict[str, Any] = {"names": (self.name,), "path": self.name, **fields}
        return ModelSpec(make=self._make, measure=self._measure, **given)

    def _make(self, plan: MemoryPlan | None) -> Runtime:
        self.made.append(LoadedModel(self, plan))
        return cast("Runtime", self.made[-1])

    def _measure(self) -> MemoryNeeds:
        if self.measure_error is not None:
            raise self.measure_error
        return MemoryNeeds(
            model=self.name,
            ctx_size=1,
            kv_tokens=None,
            parallel=100,
            spare_kv_tokens=0,
            weights_bytes=self.size - self.pool_token_size,
            kv_bytes_per_token=self.pool_token_size,
            compute_bytes=0,
        )


def _loaded(spec: AdapterSpec, number: int) -> AdapterCard:
    return AdapterCard(adapter_id=number, name=spec.name, path=spec.path, scale=spec.scale, rank=1, size_bytes=1)


class Machine:
    """A registry of such models, and what is left of its memory."""

    def __init__(
        self,
        *models: FakeModel,
        memory: int = 1000,
        discover: Callable[[], Sequence[ModelSpec]] | None = None,
        specs: Sequence[ModelSpec] | None = None,
        strict: bool = False,
        **settings: Any,
    ) -> None:
        self.memory = memory
        self.models = list(models)
        self.clock = Clock()
        self.registry = Registry(
            [model.spec() for model in models] if specs is None else specs,
            RegistryConfig(**settings),
            strict=strict,
            discover=discover,
            available=self.available,
            clock=self.clock,
        )

    def available(self) -> int:
        return self.memory - sum(model.size * model.num_loaded for model in self.models)

    def advance(self, seconds: float) -> None:
        self.clock.now += seconds
        self.registry._residency.wake()

    def states(self) -> dict[str, str]:
        return {status.model_id: status.state for status in self.registry.statuses()}

    async def use(self, model: str | None, **fields: Any) -> None:
        """A request that ends as soon as it is let in."""
        (await self.registry.lease(model, **fields)).close()

    def ask(self, model: str, **fields: Any) -> asyncio.Task[Lease]:
        """A request that may have to wait."""
        return asyncio.ensure_future(self.registry.lease(model, **fields))

    async def queued(self, model: str, **fields: Any) -> asyncio.Task[Lease]:
        """A request that has to wait for others to leave, and for whom that was tried."""
        task = self.ask(model, **fields)
        entry = self.registry._entries[model]
        await until(lambda: entry.num_waiting > 0 and (entry.instance is not None or entry.is_measured))
        await settled()
        return task


@asynccontextmanager
async def running(*models: FakeModel, **fields: Any) -> AsyncGenerator[Machine]:
    """A machine whose registry has been started; in the end nothing of it is left."""
    before = asyncio.all_tasks()
    machine = Machine(*models, **fields)
    await machine.registry.start()
    try:
        yield machine
    finally:
        await machine.registry.close()
        await until(lambda: asyncio.all_tasks() == before)
    assert [model.name for model in machine.models if model.num_loaded] == []
    assert all(runtime.num_closes for model in machine.models for runtime in model.made)


async def settled() -> None:
    """Lets everybody go on who can without a thread; for what must *not* happen."""
    for _ in range(50):
        await asyncio.sleep(0)


def leaders(tasks: Sequence[asyncio.Task[Lease]]) -> int:
    """How many of these requests have been let in."""
    return sum(task.done() and not task.cancelled() and task.exception() is None for task in tasks)
