"""A replica's runtime whose every move a test decides, and a fleet of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from typing import Any, Unpack

import msgspec

from stoker.core.params import SamplingParams
from stoker.core.slot_state import SlotState
from stoker.engine.cards import AdapterCard, ModelCard
from stoker.engine.config import AdapterSpec
from stoker.engine.health import Health
from stoker.engine.protocol import Accepted, Output, Prompt, Submit, Usage
from stoker.engine.question_messages import (
    A,
    AdapterList,
    Answer,
    BlocksHeld,
    ChangeAdapters,
    Detokenize,
    Detokenized,
    Embed,
    Embedded,
    Erased,
    EraseSlots,
    ListSlots,
    LookAtBlocks,
    Question,
    RestoreSlot,
    SaveSlot,
    SlotFiled,
    SlotList,
    Tokenize,
    Tokenized,
    as_answer_to,
)
from stoker.engine.stats import EngineStats
from stoker.errors import (
    AdapterNotFound,
    EngineCrashed,
    InvalidInput,
    ModelNotLoaded,
    StokerError,
    UnsupportedParameter,
)
from stoker.runtime.local_fleet import LocalFleet
from stoker.runtime.replica_config import ReplicaConfig
from stoker.runtime.replicas import ReplicatedRuntime
from stoker.text.chat_formats.probe import ChatFormat, find_format
from stoker.text.chat_template import ChatTemplate
from stoker.text.messages import Message, RenderOptions
from tests.waiting import run, until

NUM_SLOTS = 4
CARD = ModelCard("tiny", "scripted", "test", "", 300, 4096, 2048, 4000, 2, 8, None, "", "", 0, 0, 0)
"""Two requests run, eight wait."""


class FakeReplica:
    """Answers with its number, when it is told to."""

    def __init__(self, number: int, first: ModelCard | None) -> None:
        self.number = number
        self.first = first
        self.card = CARD
        self.state = "starting"
        self.num_restarts = 0
        self.beat: EngineStats | None = None
        self.load_gate = asyncio.Event()
        self.load_error: Exception | None = None
        self.refuses: StokerError | None = None
        self.accept_gate = asyncio.Event()
        self.accept_gate.set()
        self.open: dict[str, asyncio.Queue[Output | StokerError]] = {}
        self.submits: list[Submit] = []
        self.embeds: list[Embed] = []
        self.erased: list[int | None] = []
        self.filed: list[tuple[str, int, str]] = []
        self.is_closed = False
        self.close_error: Exception | None = None
        self.adapters: dict[str, AdapterCard] = {}
        self.num_ids = 0
        self.next_adapters = [AdapterSpec(name="sql", path="", scale=1.0)]
        self.blocks: BlocksHeld | None = None
        self.num_looks = 0
        self.accepts: list[int] = []
        """Blocks of every prompt."""
        self.prompt_tokens = 10
        """Of every prompt, at least."""
        self.change_error: StokerError | None = None
        self.change_gate = asyncio.Event()
        self.change_gate.set()

    async def start(self) -> ModelCard:
        await self.load_gate.wait()
        if self.load_error is not None:
            raise self.load_error
        self.become_ready()
        return self.card

    def become_ready(self) -> None:
        """A process is there: it has what it was told to begin with."""
        self.state, self.num_ids, self.adapters = "ready", 0, {}
        for spec in self.next_adapters:
            number = spec.adapter_id if spec.adapter_id is not None else self.num_ids
            self.num_ids = max(self.num_ids, number + 1)
            self.adapters[spec.name] = AdapterCard(
                adapter_id=number, name=spec.name, path=spec.path, scale=spec.scale, rank=8, size_bytes=1
            )

    def health(self) -> Health:
        return Health(
            is_ready=self.state == "ready", state=self.state, num_restarts=self.num_restarts, heartbeat=self.beat
        )

    async def generate(self, submit: Submit) -> AsyncGenerator[Accepted | Output, None]:
        self.check()
        self.submits.append(submit)
        events = self.open[submit.request_id] = asyncio.Queue()
        try:
            await self.accept_gate.wait()
            yield Accepted(submit.request_id, max(self.prompt_tokens, 32 * len(self.accepts)), blocks=self.accepts)
            while True:
                event = await events.get()
                if isinstance(event, StokerError):
                    raise event
                yield event
                if event.finish_reason is not None:
                    return
        finally:
            del self.open[submit.request_id]

    def check(self) -> None:
        if self.refuses is not None:
            raise self.refuses
        if self.state != "ready":
            raise ModelNotLoaded(f"replica {self.number} is {self.state}", retry_after_s=7.0)

    def say(self, request_id: str, text: str = "x", finish_reason: str | None = None) -> None:
        self.open[request_id].put_nowait(Output(request_id, text, [1], Usage(10, 1, 0), finish_reason=finish_reason))

    def finish(self, request_id: str) -> None:
        self.say(request_id, f"by {self.number}", "stop")

    def crash(self) -> None:
        self.state, self.beat = "restarting", None
        for events in self.open.values():
            events.put_nowait(EngineCrashed(f"replica {self.number} died"))

    def recover(self) -> None:
        self.num_restarts += 1
        self.become_ready()

    @property
    def chat_format(self) -> ChatFormat:
        return find_format(ChatTemplate(None))

    def render_chat(self, messages: Sequence[Message], **options: Unpack[RenderOptions]) -> str:
        return "|".join(message.text for message in messages)

    async def ask(self, question: Question[A]) -> A:
        return as_answer_to(question, await self._answer(question))

    async def _answer(self, question: Question[Any]) -> Answer:
        match question:
            case Tokenize():
                self.check()
                return Tokenized(str(self.number), list(question.text.encode()), [])
            case Detokenize():
                self.check()
                return Detokenized(str(self.number), bytes(question.token_ids).decode())
            case Embed():
                self.check()
                self.embeds.append(question)
                return Embedded(str(self.number), b"", 0, [])
            case ListSlots():
                return SlotList("q", [SlotState(slot=slot, num_tokens=self.number) for slot in range(NUM_SLOTS)])
            case EraseSlots():
                if question.slot is not None and question.slot >= NUM_SLOTS:
                    raise InvalidInput("no such slot", parameter="slot")
                self.erased.append(question.slot)
                return Erased("q", 10)
            case SaveSlot() | RestoreSlot():
                action = "save" if isinstance(question, SaveSlot) else "restore"
                self.filed.append((action, question.slot, question.filename))
                return SlotFiled("q", self.number, 1000, 0.25)
            case LookAtBlocks():
                self.num_looks += 1
                self.check()
                if self.blocks is None:
                    raise UnsupportedParameter("it does not say")
                return self.blocks
            case ChangeAdapters():
                return AdapterList("q", await self._change_adapters(question))
            case _:
                raise AssertionError(question)

    async def _change_adapters(self, change: ChangeAdapters) -> list[AdapterCard]:
        load, unload, scales = change.load, change.unload, change.scales
        self.check()
        if not change.is_empty and self.change_error is not None:
            raise self.change_error
        await self.change_gate.wait()
        self.check()
        if unload is not None and unload not in self.adapters:
            raise AdapterNotFound("there is none", adapter=unload)
        if load is not None:
            number = load.adapter_id if load.adapter_id is not None else self.num_ids
            self.num_ids = number + 1
            self.adapters[load.name] = AdapterCard(
                adapter_id=number, name=load.name, path=load.path, scale=load.scale, rank=8, size_bytes=1
            )
        if unload is not None:
            del self.adapters[unload]
        if scales is not None:
            changed = {card.name: scales.get(card.adapter_id, 0.0) for card in self.adapters.values()}
            self.adapters = {n: msgspec.structs.replace(c, scale=changed[n]) for n, c in self.adapters.items()}
        self.next_adapters = [card.as_spec() for card in self.adapters.values()]
        return list(self.adapters.values())

    def begin_with(self, adapters: Sequence[AdapterSpec]) -> None:
        self.next_adapters = list(adapters)

    def names(self) -> list[str]:
        return sorted(self.adapters)

    async def close(self) -> None:
        self.state, self.is_closed = "closed", True
        if self.close_error is not None:
            raise self.close_error
        for events in self.open.values():
            events.put_nowait(ModelNotLoaded("the model was closed"))


class Stage:
    """A replicated model of fakes, and the clock that it looks at."""

    def __init__(self, replicas: int | str, **settings: Any) -> None:
        self.now = 1000.0
        self.made: list[FakeReplica] = []
        self.loads_freely = True
        self.load_error: Exception | None = None
        self.blocks: BlocksHeld | None = None
        """What every new one says that it holds."""
        config = ReplicaConfig(replicas=replicas, **settings)
        self.fleet = LocalFleet(self.make, config, lambda: self.now)
        self.runtime = ReplicatedRuntime(self.fleet, restart_wait_s=5.0, clock=lambda: self.now)

    def make(self, number: int, first: ModelCard | None) -> FakeReplica:
        fake = FakeReplica(number, first)
        fake.load_error, fake.blocks = self.load_error, self.blocks
        if self.loads_freely:
            fake.load_gate.set()
        self.made.append(fake)
        return fake

    @property
    def alive(self) -> list[FakeReplica]:
        return [fake for fake in self.made if not fake.is_closed]

    def later(self, seconds: float) -> None:
        self.now += seconds
        self.runtime.check()

    def ask(self, request_id: str, prompt: Prompt = "hi", **fields: Any) -> asyncio.Task[str]:
        """The whole answer, in the background."""
        return asyncio.ensure_future(self._answer(Submit(request_id, prompt, SamplingParams(), **fields)))

    async def _answer(self, submit: Submit) -> str:
        events = [event async for event in self.runtime.generate(submit)]
        assert [isinstance(event, Accepted) for event in events] == [True] + [False] * (len(events) - 1)
        return "".join(event.text for event in events if isinstance(event, Output))

    def holder(self, request_id: str) -> FakeReplica:
        (fake,) = [fake for fake in self.alive if request_id in fake.open]
        return fake

    def is_held(self, request_id: str) -> bool:
        return any(request_id in fake.open for fake in self.alive)

    async def begun(self, fake: FakeReplica, *request_ids: str) -> None:
        """These are held there, and something of their answers was read."""
        await until(lambda: all(request_id in fake.open for request_id in request_ids))
        for request_id in request_ids:
            fake.say(request_id, "")
        await until(lambda: all(fake.open[request_id].empty() for request_id in request_ids))

    async def held(self, *request_ids: str) -> None:
        await until(lambda: all(map(self.is_held, request_ids)))

    def finish_all(self) -> None:
        """Everything that is computed anywhere."""
        for fake in self.made:
            for request_id in list(fake.open):
                fake.finish(request_id)


def play(stage: Stage, test: Coroutine[Any, Any, None]) -> None:
    """Runs a test on a model that is loaded before and closed after it."""

    async def whole() -> None:
        await stage.runtime.start()
        try:
            await test
        finally:
            await stage.runtime.close()
        assert all(fake.is_closed and not fake.open for fake in stage.made)

    run(whole())
