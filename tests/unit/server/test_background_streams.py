"""Streams of responses in the background, which clients leave and read again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import httpx2
import openai
import pytest
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter
from starlette.types import ASGIApp

from stoker.errors import EngineCrashed, InvalidInput, ResponseNotFound, UnsupportedParameter
from stoker.server.config import ServerConfig
from stoker.server.dialects.responses import routes, writer
from stoker.server.dialects.responses.event_log import MIN_EVENTS, EventLog
from stoker.server.dialects.responses.store import ResponseStore
from stoker.text.messages import Message
from tests.unit.server.fake_runtime import FakeRuntime, RawClient, Step, make_app
from tests.unit.server.test_response_store import response
from tests.waiting import run, until

ME = "me"


def begin(app: ASGIApp, **fields: Any) -> RawClient:
    return RawClient(app, "/v1/responses", {"input": "hi", "background": True, "stream": True, **fields})


async def read(client: RawClient, wanted: str = "") -> list[Any]:
    """The events up to the first whose type ends with `wanted`; without it, all to the end of the stream."""
    events: list[Any] = []
    while True:
        message = await client.received.get()
        body = message.get("body", b"").decode()
        events += [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: ")]
        if wanted and any(str(event.get("type")).endswith(wanted) for event in events):
            return events
        if message["type"] == "http.response.body" and not message.get("more_body"):
            return events


def again(app: ASGIApp, response_id: str, query: str = "stream=true") -> RawClient:
    return RawClient(app, f"/v1/responses/{response_id}", query=query)


def numbers(events: Sequence[Any]) -> list[int]:
    return [event["sequence_number"] for event in events]


def test_a_client_leaves_and_reads_the_rest_later():
    async def test() -> None:
        gate = asyncio.Event()
        runtime = FakeRuntime(lambda submit: ["a", gate, "b", "c"])
        app = make_app(runtime)
        client = begin(app)
        seen = await read(client, "output_text.delta")
        assert [event["type"] for event in seen[:3]] == [
            "response.created",
            "response.queued",
            "response.in_progress",
        ]
        assert [event["response"]["status"] for event in seen[:3]] == ["queued", "queued", "in_progress"]
        response_id = seen[0]["response"]["id"]
        client.leave()
        await client.task
        assert runtime.held, "the response goes on"
        last = seen[-1]["sequence_number"]
        follower, whole = again(app, response_id, f"stream=true&starting_after={last}"), again(app, response_id)
        before = await read(whole, "output_text.delta")
        assert before == seen
        gate.set()
        rest = await read(follower)
        assert numbers(rest)[0] == last + 1
        assert [*before, *(await read(whole))] == [*seen, *rest]
        assert numbers([*seen, *rest]) == list(range(len(seen) + len(rest)))
        assert rest[-1]["type"] == "response.completed"
        assert "".join(event["delta"] for event in [*seen, *rest] if "delta" in event) == "abc"
        assert await read(again(app, response_id)) == [*seen, *rest], "also after its end"
        assert await read(again(app, response_id, f"stream=true&starting_after={numbers(rest)[-1]}")) == []

    run(test())


def test_openai_s_client_reads_it_again_and_goes_on_from_it():
    async def test() -> None:
        runtime = FakeRuntime()
        http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=make_app(runtime)))
        client: Any = openai.AsyncOpenAI(api_key="none", base_url="http://test/v1", http_client=http, max_retries=0)
        async with client:
            stream = await client.responses.create(model="", input="one", background=True, stream=True)
            events = [event async for event in stream]
            for event in events:
                TypeAdapter[Any](ResponseStreamEvent).validate_python(event.model_dump(exclude_unset=True))
            first = events[-1].response
            assert (events[-1].type, first.background, first.output_text) == ("response.completed", True, "Hello!")
            rest = await client.responses.retrieve(first.id, stream=True, starting_after=3)
            assert [event async for event in rest] == events[4:]
            assert await client.responses.retrieve(first.id) == first
            assert (await client.responses.cancel(first.id)).status == "completed"
            async with client.responses.stream(response_id=first.id, starting_after=1) as resumed:
                assert (await resumed.get_final_response()).output_text == "Hello!"
            await client.responses.create(model="", input="two", previous_response_id=first.id)
        assert [m.text for m in runtime.rendered[-1][0]] == ["one", "Hello!", "two"]

    run(test())


def test_it_is_cancelled_while_it_is_read():
    async def test() -> None:
        runtime = FakeRuntime(lambda submit: ["a", asyncio.Event(), "b"])
        app = make_app(runtime)
        client = begin(app)
        seen = await read(client, "output_text.delta")
        path = f"/v1/responses/{seen[0]['response']['id']}"
        cancelling = RawClient(app, f"{path}/cancel", {})
        assert json.loads(await cancelling.next_body())["status"] == "cancelled"
        assert await read(client) == [], "no event tells it: the stream ends"
        await until(lambda: runtime.held == set())
        assert await read(RawClient(app, path, query="stream=true")) == seen

    run(test())


def test_it_is_deleted_while_it_is_read():
    async def test() -> None:
        store, log = ResponseStore(ServerConfig()), EventLog()
        running = response("a", "half", "in_progress", background=True)
        store.start(ME, "a", lambda: running, asyncio.Future(), (), log)
        reading = asyncio.create_task(anext(log.read(0), None))
        await asyncio.sleep(0)
        store.delete(ME, "a")
        assert await reading is None
        with pytest.raises(ResponseNotFound):
            store.events_of(ME, "a")

    run(test())


@pytest.mark.parametrize(("kind", "code"), [(EngineCrashed, "engine_crashed"), (RuntimeError, "internal_error")])
@pytest.mark.parametrize("is_stream", [True, False])
def test_a_response_that_fails_says_so(
    kind: type[Exception], code: str, caplog: pytest.LogCaptureFixture, *, is_stream: bool
):
    secret = "words of a prompt"
    steps: list[Step] = ["a", kind(secret)]
    app = make_app(runtime := FakeRuntime(lambda submit: steps))

    async def test() -> tuple[list[Any], Any]:
        client = begin(app, stream=is_stream)
        if is_stream:
            events = await read(client)
            response_id = events[0]["response"]["id"]
        else:
            events, response_id = [], json.loads(await client.next_body())["id"]
        await until(lambda: runtime.held == set())
        assert await read(again(app, response_id)) == events or not is_stream
        return events, json.loads(await RawClient(app, f"/v1/responses/{response_id}").next_body())

    events, kept = run(test())
    assert (kept["status"], kept["error"]["code"]) == ("failed", code)
    if is_stream:
        assert (events[-1]["type"], events[-1]["response"]) == ("response.failed", kept)
        assert numbers(events) == list(range(len(events)))
    if kind is RuntimeError:
        assert "RuntimeError" in caplog.text
        assert secret not in caplog.text + json.dumps(kept)


def test_a_response_ends_even_if_its_item_cannot_be_written(monkeypatch: pytest.MonkeyPatch):
    def broken(self: Any, status: str) -> Any:
        if status != "in_progress":
            raise RuntimeError("no item")
        return item(self, status)

    item = writer._Open.item
    monkeypatch.setattr(writer._Open, "item", broken)
    app = make_app(FakeRuntime())

    async def test() -> list[Any]:
        return await read(begin(app))

    *_, last = run(test())
    assert (last["type"], last["response"]["output"]) == ("response.failed", [])


def test_it_belongs_to_a_conversation():
    async def test() -> None:
        app = make_app(FakeRuntime())
        made = json.loads(await RawClient(app, "/v1/conversations", {}).next_body())
        assert (await read(begin(app, conversation=made["id"])))[-1]["type"] == "response.completed"
        path = f"/v1/conversations/{made['id']}/items"
        items = json.loads(await RawClient(app, path).next_body())["data"]
        assert [item["content"][0]["text"] for item in items] == ["Hello!", "hi"]

    run(test())


def test_it_is_continued_as_soon_as_its_stream_says_that_it_is_complete():
    async def test() -> None:
        store, whole = ResponseStore(ServerConfig()), response("resp_a", "whole", background=True)
        store.start(ME, "resp_a", lambda: whole, asyncio.Future(), [Message(role="user", content="q")], EventLog())
        assert [message.text for message in store.conversation(ME, "resp_a")] == ["q", "whole"]
        assert store.message(ME, "msg_a_0", "input[0]").text == "q"
        assert (await store.cancel(ME, "resp_a")).status == "completed"
        assert store.get(ME, "resp_a") == whole

    run(test())


@pytest.mark.parametrize("fields", [{}, {"background": True}, {"stream": True}])
def test_only_a_stream_in_the_background_is_read_again(fields: dict[str, Any]):
    async def test() -> None:
        app = make_app(FakeRuntime())
        client = RawClient(app, "/v1/responses", {"input": "hi", **fields})
        reply = (await read(client))[0]["response"] if "stream" in fields else json.loads(await client.next_body())
        await client.task
        refused = again(app, reply["id"])
        assert (await refused.received.get())["status"] == 400
        assert json.loads(await refused.next_body())["error"]["param"] == "stream"

    run(test())


@pytest.mark.parametrize("after", ["x", "-2", "1.5", "²", "9" * 20])
def test_a_malformed_number_is_refused(after: str):
    app = make_app(FakeRuntime())

    async def test() -> None:
        events = await read(begin(app))
        client = again(app, events[0]["response"]["id"], f"stream=true&starting_after={after}")
        assert (await client.received.get())["status"] == 400
        assert json.loads(await client.next_body())["error"]["param"] == "starting_after"

    run(test())


def event(number: int) -> bytes:
    return b"event: e\ndata: %d" % number


def test_a_log_keeps_the_latest_events_and_a_few_large_ones():
    async def test() -> None:
        end = b"\n\n"
        log = EventLog(max_bytes=20 * len(event(10)))
        reading = log.read(10)
        log.add(b"".join(event(number) + end for number in range(12)))
        assert await anext(reading) == event(10) + end + event(11) + end
        for number in range(12, 50):
            log.add(event(number) + end)
        assert log.size_bytes == 20 * len(event(10))
        with pytest.raises(InvalidInput, match="before 30") as caught:
            await anext(reading)
        assert caught.value.fields["parameter"] == "starting_after"
        log.check(30)
        with pytest.raises(InvalidInput):
            log.check(29)
        log.end()
        assert [batch async for batch in log.read(48)] == [event(48) + end + event(49) + end]
        for _ in range(MIN_EVENTS):
            log.add(b"x" * 1000 + end)
        assert log.size_bytes == MIN_EVENTS * 1000

    run(test())


def test_events_count_with_the_response_that_is_stored():
    store = ResponseStore(ServerConfig(max_stored_bytes=4_000))
    for name in "abcdefgh":
        log = EventLog()
        log.add(b"x" * 450 + b"\n\n")
        store.put(ME, response(name), (), log)
        assert store.events_of(ME, name) is log
    with pytest.raises(ResponseNotFound):
        store.events_of(ME, "a")


def test_a_response_whose_events_are_too_large_is_stored_without_them():
    store, log = ResponseStore(ServerConfig(max_stored_bytes=4_000)), EventLog()
    log.add(b"x" * 4_000 + b"\n\n")
    store.put(ME, response("b"), (), log)
    assert store.get(ME, "b").id == "b"
    with pytest.raises(UnsupportedParameter, match="no longer kept"):
        store.events_of(ME, "b")


def test_a_client_that_is_too_late_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(routes, "EventLog", partial(EventLog, 600))

    async def test() -> None:
        gate = asyncio.Event()
        runtime = FakeRuntime(lambda submit: ["a", gate, *"b" * 40])
        app = make_app(runtime)
        ahead = begin(app)
        created = (await read(ahead, "created"))[0]
        path = f"/v1/responses/{created['response']['id']}"
        behind = RawClient(app, path, query="stream=true&starting_after=3", room=1)
        await behind.blocked.wait()
        gate.set()
        await until(lambda: runtime.held == set())
        *_, last = await read(behind)
        assert last["error"]["param"] == "starting_after"
        late = again(app, created["response"]["id"])
        assert (await late.received.get())["status"] == 400

    run(test())
