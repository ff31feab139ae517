"""Clients that leave, that stall and that wait, at the level of ASGI messages."""

import asyncio
import logging
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from stoker.errors import Overloaded
from stoker.server.transport.connection import ABORT, while_connected
from tests.unit.server.fake_runtime import FakeRuntime, RawClient, make_app
from tests.waiting import BOUND_S

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def run(test: Coroutine[Any, Any, None]) -> None:
    """Runs one test on its own loop, and sees to it that it leaves no task behind."""

    async def go() -> None:
        async with asyncio.timeout(BOUND_S):
            await test
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(go())


def held_open(gate: asyncio.Event):
    return lambda submit: ["a", gate, "b"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_leaving_in_the_middle_frees_everything(stream: bool, n: int):
    async def test() -> None:
        runtime = FakeRuntime(held_open(asyncio.Event()))
        client = RawClient(make_app(runtime), "/v1/chat/completions", {**CHAT, "stream": stream, "n": n})
        await runtime.arrived(n)
        if stream:
            assert b"assistant" in await client.next_body()
        client.leave()
        await client.task
        assert runtime.held == set()

    run(test())


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_while_queued_frees_the_place(stream: bool):
    async def test() -> None:
        runtime = FakeRuntime()
        runtime.accept_gate = asyncio.Event()
        client = RawClient(make_app(runtime), "/v1/chat/completions", {**CHAT, "stream": stream})
        await runtime.arrived(1)
        client.leave()
        await client.task
        assert runtime.held == set()
        start = client.received.get_nowait()
        assert start["status"] == 499, "no stream was opened"

    run(test())


def test_leaving_before_the_first_event_frees_everything():
    async def test() -> None:
        runtime = FakeRuntime(held_open(asyncio.Event()))
        client = RawClient(make_app(runtime), "/v1/chat/completions", {**CHAT, "stream": True})
        client.leave()
        await client.task
        assert len(runtime.submits) <= 1
        assert runtime.held == set()

    run(test())


@pytest.mark.parametrize("n", [1, 3])
def test_leaving_while_a_write_waits_frees_everything(n: int):
    async def test() -> None:
        runtime = FakeRuntime(lambda submit: ["a"] * 100)
        client = RawClient(make_app(runtime), "/v1/chat/completions", {**CHAT, "stream": True, "n": n}, room=2)
        await client.blocked.wait()
        assert runtime.held
        client.leave()
        await client.task
        assert runtime.held == set()

    run(test())


def test_leaving_is_logged_as_499(caplog: pytest.LogCaptureFixture):
    async def test() -> None:
        runtime = FakeRuntime(held_open(asyncio.Event()))
        client = RawClient(make_app(runtime), "/v1/chat/completions", {**CHAT, "stream": True})
        await client.next_body()
        client.leave()
        await client.task

    with caplog.at_level(logging.INFO, logger="stoker.server.access"):
        run(test())
    assert " 499 " in caplog.messages[-1]


def test_header_is_sent_when_the_request_is_accepted_and_not_before():
    async def test() -> None:
        gate = asyncio.Event()
        runtime = FakeRuntime(lambda submit: [gate, "a"])
        runtime.accept_gate = asyncio.Event()
        client = RawClient(make_app(runtime), "/v1/chat/completions", {**CHAT, "stream": True})
        await runtime.arrived(1)
        assert client.received.empty()
        runtime.accept_gate.set()
        assert (await client.received.get())["type"] == "http.response.start"
        assert client.received.empty(), "the role comes with the first token"
        gate.set()
        assert b"assistant" in await client.next_body()
        await client.task

    run(test())


def test_role_and_first_token_come_together():
    async def test() -> None:
        client = RawClient(make_app(FakeRuntime()), "/v1/chat/completions", {**CHAT, "stream": True})
        body = await client.next_body()
        assert b'"role":"assistant"' in body
        assert b'"content":"Hel"' in body
        await client.task

    run(test())


def test_slow_template_holds_up_nobody_else():
    class SlowTemplate(FakeRuntime):
        def __init__(self) -> None:
            super().__init__()
            self.entered, self.may_end = threading.Event(), threading.Event()

        def render_chat(self, *args: Any, **kwargs: Any) -> str:
            self.entered.set()
            assert self.may_end.wait(BOUND_S / 5), "the event loop is held up"
            return super().render_chat(*args, **kwargs)

    async def test() -> None:
        runtime = SlowTemplate()
        app = make_app(runtime)
        slow = RawClient(app, "/v1/chat/completions", CHAT)
        assert await asyncio.to_thread(runtime.entered.wait, BOUND_S)
        other = RawClient(app, "/v1/completions", {"prompt": "x"})
        assert b"Hello!" in await other.next_body()
        runtime.may_end.set()
        assert b"Hello!" in await slow.next_body()
        await asyncio.gather(slow.task, other.task)

    run(test())


def test_quiet_stream_gets_comments():
    async def test() -> None:
        gate = asyncio.Event()
        app = make_app(FakeRuntime(held_open(gate)), keep_alive_s=0.01)
        client = RawClient(app, "/v1/chat/completions", {**CHAT, "stream": True})
        assert b"assistant" in await client.next_body()
        assert await client.next_body() == b":\n\n"
        assert await client.next_body() == b":\n\n"
        gate.set()
        while (body := await client.next_body()) == b":\n\n":
            pass
        assert b'"b"' in body
        await client.task

    run(test())


def test_client_that_does_not_read_is_cut_off():
    async def test() -> None:
        runtime = FakeRuntime(held_open(asyncio.Event()))
        app = make_app(runtime, keep_alive_s=0.01, write_timeout_s=0.05)
        client = RawClient(app, "/v1/chat/completions", {**CHAT, "stream": True}, room=2)
        cuts: list[str] = []
        client._scope["state"] = {ABORT: lambda: cuts.append("cut")}
        await client.task
        assert runtime.held == set()
        assert cuts == ["cut"], "closing would wait for the client to take what it does not take"

    run(test())


def test_body_that_never_comes_is_408():
    async def test() -> None:
        client = RawClient(make_app(FakeRuntime(), body_timeout_s=0.01), "/v1/completions", {})
        client._inbox.get_nowait()
        client._inbox.put_nowait({"type": "http.request", "body": b"{", "more_body": True})
        await client.task
        assert client.received.get_nowait()["status"] == 408

    run(test())


def test_leaving_in_the_middle_of_the_body():
    async def test() -> None:
        runtime = FakeRuntime()
        client = RawClient(make_app(runtime), "/v1/completions", {})
        client._inbox.get_nowait()
        client.leave()
        await client.task
        assert client.received.get_nowait()["status"] == 499
        assert runtime.submits == []

    run(test())


def test_while_connected_gives_the_result_and_the_error():
    async def test() -> None:
        async def nothing() -> Any:
            await asyncio.Event().wait()

        async def answer() -> int:
            return 7

        async def fails() -> int:
            raise ValueError("x")

        assert await while_connected(nothing, answer()) == 7
        with pytest.raises(ValueError, match="x"):
            await while_connected(nothing, fails())

    run(test())


def test_cancelling_the_server_task_cancels_the_work():
    async def test() -> None:
        runtime = FakeRuntime(held_open(asyncio.Event()))
        client = RawClient(make_app(runtime), "/v1/chat/completions", {**CHAT, "stream": True})
        await client.next_body()
        client.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await client.task
        assert runtime.held == set()

    run(test())


def test_refusal_of_one_choice_frees_the_others_at_once():
    async def test() -> None:
        runtime = FakeRuntime(held_open(asyncio.Event()))
        runtime.refuse = lambda submit: Overloaded("full") if submit.request_id.endswith("-2") else None
        client = RawClient(make_app(runtime), "/v1/chat/completions", {**CHAT, "n": 4})
        assert (await client.received.get())["status"] == 429
        assert runtime.held == set()
        await client.task

    run(test())
