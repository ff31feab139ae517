"""Clients that leave, in every dialect: what they had begun is free between two steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import pytest

from stoker.backends.scripted import ScriptedBackend, reply_with, scripted_info
from stoker.core.batch import Batch
from stoker.core.scheduler import SchedulerConfig
from stoker.engine.engine import Engine
from stoker.engine.protocol import Accepted, Event, Output, Submit
from stoker.engine.question_messages import ListSlots, SlotList
from stoker.engine.worker import EngineWorker
from stoker.server.endpoints import ENDPOINTS
from tests.harness import loaded
from tests.unit.server.fake_runtime import FakeRuntime, RawClient, make_app
from tests.unit.server.test_connection import held_open, run
from tests.waiting import BOUND_S

HI = [{"role": "user", "content": "hi"}]
BODIES: Mapping[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": HI, "max_tokens": 99},
    "/api/generate": {"prompt": "hi"},
    "/api/chat": {"messages": HI},
    "/completion": {"prompt": "hi"},
    "/infill": {"input_prefix": "a", "input_suffix": "b"},
}

every_dialect = pytest.mark.parametrize("path", BODIES)
streamed_and_not = pytest.mark.parametrize("stream", [True, False])


def test_every_endpoint_that_streams_text_is_here():
    streaming = {endpoint.path for endpoint in ENDPOINTS if endpoint.event is not None}
    kept = {"/v1/responses/{response_id}", "/v1/messages/batches/{batch_id}/results"}
    others = {"/api/pull", "/api/create", "/models/sse", "/engine/events", *kept}
    forms = {"/v1/audio/transcriptions", "/v1/audio/translations"}  # see test_transcription
    assert streaming - others - forms == BODIES.keys()


def ask(runtime: FakeRuntime, path: str, stream: bool, **settings: Any) -> RawClient:
    return RawClient(make_app(runtime, **settings), path, {**BODIES[path], "stream": stream})


@every_dialect
@streamed_and_not
def test_leaving_in_the_middle_frees_everything(path: str, stream: bool):
    async def test() -> None:
        runtime = FakeRuntime(held_open(asyncio.Event()))
        client = ask(runtime, path, stream)
        await runtime.arrived(1)
        if stream:
            await client.next_body()
        client.leave()
        await client.task
        assert runtime.held == set()

    run(test())


@every_dialect
@streamed_and_not
def test_leaving_while_queued_frees_the_place_before_a_stream_opens(path: str, stream: bool):
    async def test() -> None:
        runtime = FakeRuntime()
        runtime.accept_gate = asyncio.Event()
        client = ask(runtime, path, stream)
        await runtime.arrived(1)
        client.leave()
        await client.task
        assert runtime.held == set()
        assert client.received.get_nowait()["status"] == 499

    run(test())


@every_dialect
def test_client_that_does_not_read_is_cut_off(path: str):
    async def test() -> None:
        runtime = FakeRuntime(lambda submit: ["a"] * 50)
        client = RawClient(make_app(runtime, write_timeout_s=0.01), path, {**BODIES[path], "stream": True}, room=2)
        await client.task
        assert runtime.held == set()

    run(test())


class Gate:
    """A backend that computes one step after the other, when it is let."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.entered = asyncio.Semaphore(0)
        self._steps: asyncio.Queue[None] = asyncio.Queue()
        self.num_steps = 0

    def __call__(self, batch: Batch) -> None:
        self.num_steps += 1
        asyncio.run_coroutine_threadsafe(self._wait(), self._loop).result(BOUND_S)

    async def _wait(self) -> None:
        self.entered.release()
        await self._steps.get()

    def let(self, count: int) -> None:
        for _ in range(count):
            self._steps.put_nowait(None)


class ScriptedRuntime(FakeRuntime):
    """A real engine with a scripted backend, in this process."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        info = scripted_info(context_size=2048, kv_tokens=2048, max_batch_tokens=16)
        backend = ScriptedBackend(info, next_token=reply_with("abcdefgh" * 8), before_forward=gate)
        engine = Engine(loaded(backend), SchedulerConfig(max_running=1, max_waiting=8))
        self._loop = asyncio.get_running_loop()
        self._inboxes: dict[str, asyncio.Queue[Output]] = {}
        self.answers: asyncio.Queue[SlotList] = asyncio.Queue()
        self.worker = EngineWorker(engine, self._publish)

    def _publish(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, SlotList):
                self._loop.call_soon_threadsafe(self.answers.put_nowait, event)
            elif isinstance(event, Output) and event.request_id in self._inboxes:
                self._loop.call_soon_threadsafe(self._inboxes[event.request_id].put_nowait, event)

    async def generate(self, submit: Submit) -> AsyncGenerator[Accepted | Output, None]:
        self.submits.append(submit)
        inbox: asyncio.Queue[Output] = asyncio.Queue()
        self._inboxes[submit.request_id] = inbox
        self.worker.submit(submit)
        self._arrivals.put_nowait(submit.request_id)
        try:
            yield Accepted(submit.request_id, len(submit.prompt))
            while True:
                output = await inbox.get()
                yield output
                if output.finish_reason is not None:
                    return
        finally:
            self.worker.abort(submit.request_id)


LONG = "word " * 60


def long_body(path: str) -> dict[str, Any]:
    """The same request with a prompt that takes many steps."""
    texts = {"prompt": LONG, "input": LONG, "input_prefix": LONG, "messages": [{"role": "user", "content": LONG}]}
    return BODIES[path] | {name: text for name, text in texts.items() if name in BODIES[path]}


@every_dialect
@streamed_and_not
def test_leaving_in_the_middle_of_a_prompt_stops_it_between_two_steps(path: str, stream: bool):
    async def test() -> None:
        gate = Gate()
        runtime = ScriptedRuntime(gate)
        try:
            client = RawClient(make_app(runtime), path, {**long_body(path), "stream": stream})
            await gate.entered.acquire()
            gate.let(1)
            await gate.entered.acquire()
            client.leave()
            await client.task
            runtime.worker.ask(ListSlots())
            gate.let(1)
            states = (await runtime.answers.get()).slots
            assert not any(state.request_id for state in states)
            assert gate.num_steps == 2, "the prompt would have taken many"
        finally:
            gate.let(1000)
            await asyncio.to_thread(runtime.worker.close)

    run(test())
