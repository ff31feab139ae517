"""Conversations that are kept for clients of the responses API."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from openai.types.responses import ResponseReasoningItem
from pydantic import TypeAdapter
from starlette.types import ASGIApp

from stoker.errors import ConversationNotFound, InvalidInput, ResponseNotFound
from stoker.server.config import ServerConfig
from stoker.server.dialects.responses.conversations import Conversations
from stoker.server.dialects.responses.store import ResponseStore
from stoker.text.messages import Message, message_from_dict
from tests.unit.server.fake_runtime import FakeRuntime, ask, make_app
from tests.unit.server.test_access import bearer
from tests.unit.server.test_response_store import Clock, response
from tests.unit.server.test_responses import Background, create

ME = "me"
USER = {"role": "user", "content": "one"}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "namespace": "n", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "R"}
ASSISTANT = {"role": "assistant", "content": "A"}


def begin(app: ASGIApp, *items: Any, **fields: Any) -> str:
    reply = ask(app, "POST", "/v1/conversations", json={"items": list(items), **fields})
    assert reply.status_code == 200, reply.text
    return reply.json()["id"]


def items(app: ASGIApp, conversation_id: str, query: str = "?order=asc&limit=100") -> list[dict[str, Any]]:
    return ask(app, "GET", f"/v1/conversations/{conversation_id}/items{query}").json()["data"]


def texts(found: list[dict[str, Any]]) -> list[str]:
    return [item["content"][0]["text"] for item in found]


def said(reply: httpx.Response) -> tuple[int, str, str | None]:
    error = reply.json()["error"]
    return reply.status_code, error["code"], error["param"]


def test_a_conversation_is_made_shown_described_and_deleted():
    app = make_app(FakeRuntime())
    made = ask(app, "POST", "/v1/conversations", json={"metadata": {"a": "b"}}).json()
    path = f"/v1/conversations/{made['id']}"
    assert (made["object"], made["metadata"]) == ("conversation", {"a": "b"})
    assert ask(app, "GET", path).json() == made
    assert ask(app, "POST", path, json={"metadata": {"c": "d"}}).json() == {**made, "metadata": {"c": "d"}}
    assert ask(app, "GET", path).json()["metadata"] == {"c": "d"}
    assert ask(app, "DELETE", path).json() == {"id": made["id"], "object": "conversation.deleted", "deleted": True}
    for method, tail in (("GET", ""), ("DELETE", ""), ("GET", "/items")):
        assert said(ask(app, method, path + tail)) == (404, "conversation_not_found", "conversation_id")


def test_a_response_continues_it_and_adds_to_it():
    runtime = FakeRuntime()
    app = make_app(runtime)
    conversation_id = begin(app, USER)
    first = create(app, input="two", conversation=conversation_id, instructions="I")
    assert first["conversation"] == {"id": conversation_id}
    assert [m.text for m in runtime.rendered[-1][0]] == ["I", "one", "two"]
    create(app, input="three", conversation={"id": conversation_id}, store=False)
    assert [m.text for m in runtime.rendered[-1][0]] == ["one", "two", "Hello!", "three"]
    found = items(app, conversation_id)
    assert texts(found) == ["one", "two", "Hello!", "three", "Hello!"]
    assert found[2]["id"] == first["output"][0]["id"]
    assert texts(items(app, conversation_id, "?limit=2")) == ["Hello!", "three"]
    assert "conversation" not in create(app)


def test_a_stream_and_a_response_in_the_background_add_to_it_too():
    async def test() -> None:
        background = Background(FakeRuntime(lambda submit: ["a", {"text": "", "finish_reason": "stop"}]))
        client = background.client
        conversation_id = (await client.post("/v1/conversations", json={})).json()["id"]
        path = f"/v1/conversations/{conversation_id}/items"
        await client.post("/v1/responses", json={"input": "s", "conversation": conversation_id, "stream": True})
        assert texts((await client.get(path)).json()["data"]) == ["a", "s"]
        response_id = await background.start(input="b", conversation=conversation_id)
        await background.until(response_id, "completed", "a")
        assert texts((await client.get(path)).json()["data"]) == ["a", "b", "a", "s"]

    asyncio.run(test())


def test_calls_are_items_that_the_model_sees_as_one_message():
    call = '<tool_call>\n{"name": "n.f", "arguments": {}}\n</tool_call>'
    runtime = FakeRuntime(lambda submit: ["Well.", call, {"text": "", "finish_reason": "stop"}])
    app = make_app(runtime)
    conversation_id = begin(app, USER, ASSISTANT, CALL, RESULT)
    tools = [{"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]}]
    output = create(app, input="two", conversation=conversation_id, tools=tools)["output"]
    _, said_before, result, _ = runtime.rendered[-1][0]
    assert (said_before.text, [call["id"] for call in said_before.tool_calls], result.text) == ("A", ["c1"], "R")
    found = items(app, conversation_id)
    kinds = [item["type"] for item in found]
    assert kinds[:4] == ["message", "message", "function_call", "function_call_output"]
    assert kinds[4:] == ["message", "message", "function_call"]
    assert [(found[n]["namespace"], found[n]["name"]) for n in (2, 6)] == [("n", "f")] * 2
    assert [item["id"] for item in found[5:]] == [item["id"] for item in output]
    assert len({item["id"] for item in found}) == 7


def test_items_are_added_shown_and_deleted_and_no_id_comes_twice():
    app = make_app(FakeRuntime())
    conversation_id = begin(app, USER)
    path = f"/v1/conversations/{conversation_id}/items"
    added = ask(app, "POST", path, json={"items": [ASSISTANT, CALL]}).json()
    assert [item["type"] for item in added["data"]] == ["message", "function_call"]
    assert (added["first_id"], added["has_more"]) == (added["data"][0]["id"], False)
    last = added["last_id"]
    assert ask(app, "GET", f"{path}/{last}").json() == added["data"][1]
    assert ask(app, "DELETE", f"{path}/{last}").json()["id"] == conversation_id
    assert said(ask(app, "GET", f"{path}/{last}")) == (404, "conversation_not_found", "item_id")
    again = ask(app, "POST", path, json={"items": [CALL]}).json()["last_id"]
    assert again != last
    assert [item["id"] for item in items(app, conversation_id)][-1] == again


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"conversation": "conv_other"}, "conversation"),
        ({"conversation": {}}, "conversation"),
        ({"conversation": ""}, "conversation"),
        ({"conversation": "conv_other", "previous_response_id": "resp_other"}, "conversation"),
    ],
)
def test_a_response_refuses_a_conversation_that_is_not_there(fields: dict[str, Any], param: str):
    reply = ask(make_app(FakeRuntime()), "POST", "/v1/responses", json={"input": "hi", **fields})
    assert reply.status_code in (400, 404)
    assert reply.json()["error"]["param"] == param


@pytest.mark.parametrize("text", ["<think>half", "<think>T</think>A", "<think>T</think>A<think>U</think>B"])
@pytest.mark.parametrize("store", [True, False])
def test_reasoning_of_an_answer_is_an_item_and_goes_on_as_in_a_stored_response(text: str, store: bool):
    """The last of the reasoning is cut off by the token limit."""
    runtime = FakeRuntime(lambda submit: [f"{text}<think>cut", {"text": "", "finish_reason": "length"}])
    app = make_app(runtime)
    conversation_id = begin(app)
    first = create(app, input="one", conversation=conversation_id, store=store)
    assert [item["id"] for item in items(app, conversation_id)[1:]] == [item["id"] for item in first["output"]]
    listed = [item for item in items(app, conversation_id) if item["type"] == "reasoning"]
    thoughts = [item["content"][0]["text"] for item in listed]
    assert thoughts == [item["content"][0]["text"] for item in first["output"] if item["type"] == "reasoning"]
    for item in listed:
        TypeAdapter[Any](ResponseReasoningItem).validate_python(item)
    create(app, input="two", conversation=conversation_id)
    stored = create(app, input="one")
    create(app, input="two", previous_response_id=stored["id"])
    by_conversation, by_response = runtime.rendered[1][0], runtime.rendered[3][0]
    assert (by_conversation[-1].text, by_response[-1].text) == ("two", "two")
    answers = [[m for m in messages if m.role == "assistant"] for messages in (by_conversation, by_response)]
    assert len({"".join(m.text for m in found) for found in answers}) == 1
    assert len({"".join(m.reasoning or "" for m in found) for found in answers}) == 1
    references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
    create(app, input=[*references, {"role": "assistant", "content": "."}])
    found = "".join(m.reasoning or "" for m in runtime.rendered[-1][0])
    assert found == "".join(thoughts)


def test_items_of_a_conversation_are_found_whatever_became_of_their_response():
    runtime = FakeRuntime()
    app = make_app(runtime)
    conversation_id = begin(app)
    unstored = create(app, input="one", conversation=conversation_id, store=False)["output"][0]["id"]
    deleted = create(app, input="two", conversation=conversation_id)
    ask(app, "DELETE", f"/v1/responses/{deleted['id']}")
    references = [{"type": "item_reference", "id": item_id} for item_id in (unstored, deleted["output"][0]["id"])]
    create(app, input=references)
    assert [m.text for m in runtime.rendered[-1][0]] == ["Hello!", "Hello!"]
    ask(app, "DELETE", f"/v1/conversations/{conversation_id}/items/{unstored}")
    for gone in (unstored, deleted["output"][0]["id"]):
        refused = ask(app, "POST", "/v1/responses", json={"input": [{"type": "item_reference", "id": gone}]})
        assert said(refused) == (404, "response_not_found", "input[0]")
        ask(app, "DELETE", f"/v1/conversations/{conversation_id}")


def test_a_response_needs_no_input_if_the_conversation_has_some():
    runtime = FakeRuntime()
    app = make_app(runtime)
    assert create(app, input=None, conversation=begin(app, USER))["status"] == "completed"
    assert [m.text for m in runtime.rendered[-1][0]] == ["one"]
    body = {"conversation": begin(app)}
    assert said(ask(app, "POST", "/v1/responses", json=body)) == (400, "invalid_input", "input")


def test_tokens_of_a_conversation_are_counted():
    app = make_app(FakeRuntime())
    both = {"input": [USER, {"role": "user", "content": "two"}]}
    counted = [
        ask(app, "POST", "/v1/responses/input_tokens", json=body).json()["input_tokens"]
        for body in ({"input": "two", "conversation": begin(app, USER)}, both, {"input": "two"})
    ]
    assert counted[0] == counted[1] > counted[2]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"items": [{"type": "computer_call"}]}, "items[0]"),
        ({"items": [{"role": "user", "content": 1}]}, "items[0].content"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"metadata": {"a" * 65: "x"}}, "metadata"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
    ],
)
def test_what_cannot_be_kept_is_refused(body: dict[str, Any], param: str):
    reply = ask(make_app(FakeRuntime()), "POST", "/v1/conversations", json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


def test_a_server_that_stores_nothing_makes_no_conversation():
    app = make_app(FakeRuntime(), max_stored_responses=0)
    assert ask(app, "POST", "/v1/conversations", json={}).status_code == 400


def test_only_its_key_sees_it():
    app = make_app(FakeRuntime(), api_key="alice:sk-alice,bob:sk-bob")
    mine, theirs = bearer("sk-alice"), bearer("sk-bob")
    made = ask(app, "POST", "/v1/conversations", json={"items": [USER]}, headers=mine).json()
    path = f"/v1/conversations/{made['id']}"
    for method, tail, body in (
        ("GET", "", None),
        ("GET", "/items", None),
        ("POST", "", {"metadata": {}}),
        ("POST", "/items", {"items": [USER]}),
        ("DELETE", "", None),
    ):
        assert ask(app, method, path + tail, headers=theirs, json=body).status_code == 404
    asked = ask(app, "POST", "/v1/responses", json={"input": "hi", "conversation": made["id"]}, headers=theirs)
    assert said(asked) == (404, "conversation_not_found", "conversation")
    assert texts(ask(app, "GET", f"{path}/items", headers=mine).json()["data"]) == ["one"]


def there(conversations: Conversations, *ids: str) -> list[bool]:
    def is_there(conversation_id: str) -> bool:
        try:
            return bool(conversations.get(ME, conversation_id))
        except ConversationNotFound:
            return False

    return [is_there(conversation_id) for conversation_id in ids]


def test_conversations_and_responses_share_their_bounds():
    clock = Clock()
    store = ResponseStore(ServerConfig(max_stored_responses=2, stored_response_s=10), clock)
    conversations = Conversations(store.shelf)
    old, used = (conversations.create(ME, {}, ()).conversation_id for _ in range(2))
    conversations.add(ME, used, (Message(role="user", content="hi"),))
    store.put(ME, response("resp_a"), ())
    assert there(conversations, old, used) == [False, True], "what was used last stays"
    store.put(ME, response("resp_b"), ())
    assert there(conversations, used) == [False]
    clock.now = 11
    with pytest.raises(ResponseNotFound):
        store.get(ME, "resp_b")
    assert len(store) == 0


def test_all_that_a_conversation_has_counts():
    store = ResponseStore(ServerConfig(max_stored_bytes=20_000))
    conversations = Conversations(store.shelf)
    url = {"url": f"data:image/png;base64,{'iVBORw0KGgo' + 'A' * 40_001}"}
    image = message_from_dict({"role": "user", "content": [{"type": "image_url", "image_url": url}]}, "m")
    call: dict[str, Any] = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "x" * 20_000}}
    for message in (
        image,
        Message(role="user", content="x" * 10_000),
        Message(role="assistant", reasoning="x" * 10_000),
        Message(role="assistant", tool_calls=(call,)),
        Message(role="tool", extra={"client_result": {"output": [{"stdout": "x" * 20_000}]}}),
    ):
        with pytest.raises(InvalidInput, match="would be larger than this server stores"):
            conversations.create(ME, {}, (message,))
    kept = conversations.create(ME, {}, (Message(role="user", content="x" * 4_000),)).conversation_id
    conversations.add(ME, kept, (Message(role="user", content="x"),))
    assert there(conversations, kept) == [True]
    conversations.delete(ME, kept)
    conversations.answered(ME, kept, (Message(role="user", content="x"),), response("resp_a"))
    assert there(conversations, kept) == [False], "what was deleted does not come back"
    assert len(store) == 0


def test_a_conversation_that_would_be_too_large_stays_as_it_was(caplog: pytest.LogCaptureFixture):
    store = ResponseStore(ServerConfig(max_stored_bytes=20_000))
    conversations = Conversations(store.shelf)
    grown = conversations.create(ME, {}, ()).conversation_id
    for _ in range(7):
        conversations.add(ME, grown, (Message(role="user", content="x" * 1_000),))
    with pytest.raises(InvalidInput, match="would be larger than this server stores"):
        conversations.add(ME, grown, (Message(role="user", content="x" * 2_000),))
    assert there(conversations, grown) == [True], "it stays as it was"
    before = conversations.get(ME, grown)
    conversations.answered(ME, grown, (Message(role="user", content="x" * 10_000),), response("resp_a"))
    assert conversations.get(ME, grown) is before
    assert "resp_a and its input are not added" in caplog.text
    with pytest.raises(InvalidInput, match="`metadata`: the conversation would be larger") as refused:
        conversations.describe(ME, grown, {str(n): "x" * 512 for n in range(16)})
    assert refused.value.fields["parameter"] == "metadata"
    assert conversations.get(ME, grown) is before
    assert there(conversations, conversations.create(ME, {}, ()).conversation_id) == [True]


def test_input_that_does_not_fit_is_refused_before_an_answer_is_computed():
    runtime = FakeRuntime(lambda submit: ["A" * 9_000, {"text": "", "finish_reason": "stop"}])
    app = make_app(runtime, max_stored_bytes=20_000)
    conversation_id = begin(app, USER)
    body = {"conversation": conversation_id, "input": "x" * 10_000, "store": False}
    for fields in ({}, {"stream": True}, {"background": True, "store": True}):
        reply = ask(app, "POST", "/v1/responses", json={**body, **fields})
        assert said(reply) == (400, "invalid_input", "input")
    assert runtime.submits == []
    assert ask(app, "POST", "/v1/responses/input_tokens", json=body | {"store": None}).status_code == 200, (
        "adds nothing"
    )
    assert create(app, **body | {"input": "x" * 2_000})["status"] == "completed"
    assert texts(items(app, conversation_id)) == ["one"], "the answer does not fit"


def test_a_conversation_that_changes_counts_once_and_is_the_last_to_leave():
    store = ResponseStore(ServerConfig(max_stored_bytes=3_000))
    conversations = Conversations(store.shelf)
    used, old = (conversations.create(ME, {}, ()).conversation_id for _ in range(2))
    for number in range(100):
        conversations.describe(ME, used, {"number": str(number)})
    assert there(conversations, used, old) == [True, True]
    store.put(ME, response("resp_large", "x" * 1_120), ())
    assert there(conversations, used, old) == [True, False]
