"""What is kept of responses is bounded by number, bytes and age."""

from __future__ import annotations

import asyncio
from typing import Never

import pytest

from stoker.errors import ResponseNotFound
from stoker.server.config import ServerConfig
from stoker.server.dialects.responses.store import ResponseStore, Stored
from stoker.server.dialects.responses.types import OutputMessage, OutputText, Response
from stoker.text.messages import Message

ME = "me"


def response(response_id: str, text: str = "", status: str = "completed", *, background: bool = False) -> Response:
    item = OutputMessage(id="m", status=status, content=[OutputText(text=text)])
    return Response(
        id=response_id,
        created_at=0,
        status=status,
        model="tiny",
        output=[item],
        background=background,
        store=True,
        metadata={},
    )


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def kept(store: ResponseStore, *ids: str) -> list[str]:
    def is_there(response_id: str) -> bool:
        try:
            store.get(ME, response_id)
        except ResponseNotFound:
            return False
        return True

    return [response_id for response_id in ids if is_there(response_id)]


def test_oldest_leave_when_there_are_too_many():
    store = ResponseStore(ServerConfig(max_stored_responses=2))
    for name in "abc":
        store.put(ME, response(name), ())
    assert kept(store, "a", "b", "c") == ["b", "c"]


def test_oldest_leave_when_they_are_too_large():
    store = ResponseStore(ServerConfig(max_stored_bytes=10_000))
    for name in "ab":
        store.put(ME, response(name, "x" * 1000), [Message(role="user", content="y" * 1000)])
    assert kept(store, "a", "b") == ["b"]
    store.put(ME, response("c", "x" * 1000), [Message(role="user", content="y" * 1000)])
    assert kept(store, "b", "c") == ["c"], "what left is no longer counted"


def test_what_is_too_large_alone_evicts_nothing_else():
    store = ResponseStore(ServerConfig(max_stored_bytes=10_000))
    store.put(ME, response("a"), ())
    store.put(ME, response("b"), ())
    store.put(ME, response("large", "x" * 10_000), ())
    assert kept(store, "a", "b", "large") == ["a", "b"]
    store.put(ME, response("b", "x" * 10_000), ())
    assert kept(store, "a", "b") == ["a", "b"], "the earlier version stays"


def test_a_response_is_kept_for_a_while():
    clock = Clock()
    store = ResponseStore(ServerConfig(stored_response_s=10), clock)
    store.put(ME, response("a"), ())
    clock.now = 5
    store.put(ME, response("b"), ())
    clock.now = 10
    assert kept(store, "a", "b") == ["b"]
    clock.now = 15
    assert kept(store, "b") == []
    assert len(store) == 0


def test_conversation_ends_with_the_answer():
    store = ResponseStore(ServerConfig())
    store.put(ME, response("a", "yes"), [Message(role="user", content="no?")])
    assert [(m.role, m.text) for m in store.conversation(ME, "a")] == [("user", "no?"), ("assistant", "yes")]


def test_deleted_twice_is_not_found():
    store = ResponseStore(ServerConfig())
    store.put(ME, response("a"), ())
    store.delete(ME, "a")
    with pytest.raises(ResponseNotFound):
        store.delete(ME, "a")


class Unwalked(tuple[Message, ...]):
    """May be asked for one message, and not for all."""

    def __iter__(self) -> Never:
        raise AssertionError("a request of thousands of references would take hours")


def test_an_item_is_found_without_a_walk_through_the_conversation():
    messages = Unwalked(Message(role="user", content=str(index)) for index in range(3))
    stored = Stored(response("resp_a", "answer"), messages)
    found = [stored.find(item_id) for item_id in ("msg_a_0", "msg_a_2", "m", "msg_a_3", "msg_a_02", "msg_a_-1", "2x")]
    assert [message and message.text for message in found] == ["0", "2", "answer", None, None, None, None]


def test_it_is_cancelled_for_everybody_while_its_work_still_ends():
    async def go() -> None:
        store, gate = ResponseStore(ServerConfig()), asyncio.Event()

        async def work() -> Response:
            try:
                return await asyncio.Future[Response]()
            finally:
                await gate.wait()

        running = response("a", "half", "in_progress", background=True)
        store.start(ME, "a", lambda: running, work(), [Message(role="user", content="all?")])
        await asyncio.sleep(0)
        cancelling = asyncio.create_task(store.cancel(ME, "a"))
        await asyncio.sleep(0)
        assert not cancelling.done()
        seen = store.get(ME, "a")
        (item,) = seen.output
        assert isinstance(item, OutputMessage)
        assert (seen.status, item.status) == ("cancelled", "incomplete")
        assert [message.text for message in store.input_of(ME, "a")] == ["all?"]
        gate.set()
        assert await cancelling == await store.cancel(ME, "a") == store.get(ME, "a") == seen

    asyncio.run(go())


@pytest.mark.parametrize("verb", ["cancel", "delete"])
def test_work_that_ends_all_the_same_changes_nothing(verb: str):
    async def go() -> None:
        store = ResponseStore(ServerConfig())
        ended = asyncio.Event()

        async def work() -> Response:
            try:
                return await asyncio.Future[Response]()
            except asyncio.CancelledError:
                return response("a", "whole")
            finally:
                ended.set()

        store.start(ME, "a", lambda: response("a", "half", "in_progress"), work(), ())
        await asyncio.sleep(0)
        if verb == "cancel":
            await store.cancel(ME, "a")
            assert store.get(ME, "a").status == "cancelled"
            store.delete(ME, "a")
        else:
            store.delete(ME, "a")
        await ended.wait()
        assert kept(store, "a") == []
        assert len(store) == 0

    asyncio.run(go())
