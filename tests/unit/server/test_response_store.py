"""What is kept of responses is bounded by number, bytes and age."""

from __future__ import annotations

from typing import Never

import pytest

from stoker.errors import ResponseNotFound
from stoker.server.config import ServerConfig
from stoker.server.response_store import ResponseStore, Stored
from stoker.server.wire.openai_responses import OutputMessage, OutputText, Response
from stoker.text.messages import Message


def response(response_id: str, text: str = "") -> Response:
    item = OutputMessage(id="m", status="completed", content=[OutputText(text=text)])
    return Response(
        id=response_id,
        created_at=0,
        status="completed",
        model="tiny",
        output=[item],
        background=False,
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
            store.get(response_id)
        except ResponseNotFound:
            return False
        return True

    return [response_id for response_id in ids if is_there(response_id)]


def test_oldest_leave_when_there_are_too_many():
    store = ResponseStore(ServerConfig(max_stored_responses=2))
    for name in "abc":
        store.put(response(name), ())
    assert kept(store, "a", "b", "c") == ["b", "c"]


def test_oldest_leave_when_they_are_too_large():
    store = ResponseStore(ServerConfig(max_stored_bytes=10_000))
    for name in "ab":
        store.put(response(name, "x" * 1000), [Message(role="user", content="y" * 1000)])
    assert kept(store, "a", "b") == ["b"]
    store.put(response("large", "x" * 10_000), ())
    assert kept(store, "b", "large") == []
    store.put(response("c"), ())
    assert kept(store, "c") == ["c"], "what left is no longer counted"


def test_a_response_is_kept_for_a_while():
    clock = Clock()
    store = ResponseStore(ServerConfig(stored_response_s=10), clock)
    store.put(response("a"), ())
    clock.now = 5
    store.put(response("b"), ())
    clock.now = 10
    assert kept(store, "a", "b") == ["b"]
    clock.now = 15
    assert kept(store, "b") == []
    assert len(store) == 0


def test_conversation_ends_with_the_answer():
    store = ResponseStore(ServerConfig())
    store.put(response("a", "yes"), [Message(role="user", content="no?")])
    assert [(m.role, m.text) for m in store.conversation("a")] == [("user", "no?"), ("assistant", "yes")]


def test_deleted_twice_is_not_found():
    store = ResponseStore(ServerConfig())
    store.put(response("a"), ())
    store.delete("a")
    with pytest.raises(ResponseNotFound):
        store.delete("a")


class Unwalked(tuple[Message, ...]):
    """May be asked for one message, and not for all."""

    def __iter__(self) -> Never:
        raise AssertionError("a request of thousands of references would take hours")


def test_an_item_is_found_without_a_walk_through_the_conversation():
    messages = Unwalked(Message(role="user", content=str(index)) for index in range(3))
    stored = Stored(response("resp_a", "answer"), messages)
    found = [stored.find(item_id) for item_id in ("msg_a_0", "msg_a_2", "m", "msg_a_3", "msg_a_02", "msg_a_-1", "2x")]
    assert [message and message.text for message in found] == ["0", "2", "answer", None, None, None, None]
