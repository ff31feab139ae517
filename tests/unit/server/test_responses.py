"""The responses API: what a stream says, what is kept, and how a response ends."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import msgspec
import pytest
from starlette.types import ASGIApp

from stoker.errors import EngineCrashed
from stoker.server.dialects.responses.sealing import sealed
from tests.unit.server.fake_runtime import FakeRuntime, ask, logprob, make_app, position
from tests.waiting import BOUND_S


def create(app: ASGIApp, **body: Any) -> Any:
    body.setdefault("input", "hi")
    response = ask(app, "POST", "/v1/responses", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def stream(app: ASGIApp, **body: Any) -> list[Any]:
    response = ask(app, "POST", "/v1/responses", json={"input": "hi", "stream": True, **body})
    assert response.status_code == 200, response.text
    blocks = [block.split("\ndata: ") for block in response.text.split("\n\n")[:-1]]
    events = [msgspec.json.decode(data) for _, data in blocks]
    assert [name.removeprefix("event: ") for name, _ in blocks] == [event["type"] for event in events]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def fetch(app: ASGIApp, response_id: str) -> httpx.Response:
    return ask(app, "GET", f"/v1/responses/{response_id}")


def test_whole_response():
    reply = create(make_app(FakeRuntime()), max_output_tokens=9, metadata={"a": "b"}, temperature=0.5)
    assert reply["id"].startswith("resp_")
    assert (reply["object"], reply["status"], reply["model"]) == ("response", "completed", "tiny")
    (item,) = reply["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    assert item["content"] == [{"type": "output_text", "text": "Hello!", "annotations": [], "logprobs": []}]
    assert reply["usage"] == {
        "input_tokens": 8,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 11,
    }
    assert (reply["max_output_tokens"], reply["metadata"], reply["temperature"]) == (9, {"a": "b"}, 0.5)
    assert reply["incomplete_details"] is reply["error"] is None


def test_stream_has_the_full_set_of_events_and_leads_to_the_whole_response():
    app = make_app(FakeRuntime())
    events = stream(app)
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * 3,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert "".join(event["delta"] for event in events if "delta" in event) == "Hello!"
    assert events[-4]["text"] == "Hello!"
    assert {event["item_id"] for event in events if "item_id" in event} == {events[2]["item"]["id"]}
    final = events[-1]["response"]
    assert fetch(app, final["id"]).json() == final
    changing = ("id", "created_at", "completed_at", "output")
    whole = create(app)
    assert {k: v for k, v in final.items() if k not in changing} == {
        k: v for k, v in whole.items() if k not in changing
    }
    assert final["output"][0]["content"] == whole["output"][0]["content"]


def test_an_answer_that_was_cut_is_incomplete():
    app = make_app(FakeRuntime(lambda submit: ["a", {"text": "b", "finish_reason": "length"}]))
    for reply in (create(app), stream(app)[-1]["response"]):
        assert reply["status"] == reply["output"][0]["status"] == "incomplete"
        assert reply["incomplete_details"] == {"reason": "max_output_tokens"}
        assert reply["completed_at"] is None
    assert stream(app)[-1]["type"] == "response.incomplete"


def test_a_failure_is_an_event_of_a_stream_and_a_status_otherwise():
    app = make_app(FakeRuntime(lambda submit: ["a", EngineCrashed("the engine died")]))
    *_, last = stream(app)
    assert last["type"] == "response.failed"
    assert last["response"]["status"] == "failed"
    assert last["response"]["error"] == {"code": "engine_crashed", "message": "the engine died"}
    assert last["response"]["output"][0]["content"][0]["text"] == "a"
    assert fetch(app, last["response"]["id"]).status_code == 404, "it cannot be continued"
    assert ask(app, "POST", "/v1/responses", json={"input": "hi"}).status_code == 503


def test_an_empty_answer_is_complete():
    reply = create(make_app(FakeRuntime(lambda submit: [""])))
    assert (reply["status"], reply["output"][0]["content"][0]["text"]) == ("completed", "")


def test_logprobs():
    script = [{"text": "é", "logprobs": [position("é", -0.5, logprob("é", -0.5), logprob("e", -1.5))]}, ""]
    app = make_app(FakeRuntime(lambda submit: script))
    body: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    (only,) = create(app, **body)["output"][0]["content"][0]["logprobs"]
    assert (only["token"], only["logprob"], only["bytes"]) == ("é", -0.5, list("é".encode()))
    assert [top["token"] for top in only["top_logprobs"]] == ["é", "e"]
    deltas = [event["logprobs"] for event in stream(app, **body) if event["type"] == "response.output_text.delta"]
    assert deltas == [[only]]


def test_next_turn_goes_on_from_the_stored_one_without_its_instructions():
    runtime = FakeRuntime()
    app = make_app(runtime)
    first = create(app, input="one", instructions="Be brief.")
    second = create(app, input="two", previous_response_id=first["id"])
    third = create(app, input="three", previous_response_id=second["id"], instructions="Be long.")
    assert second["previous_response_id"] == first["id"]
    turns = [[(message.role, message.text) for message in messages] for messages, _ in runtime.rendered]
    answer = ("assistant", "Hello!")
    conversation = [("user", "one"), answer, ("user", "two"), answer, ("user", "three")]
    assert turns == [
        [("system", "Be brief."), ("user", "one")],
        conversation[:3],
        [("system", "Be long."), *conversation],
    ]
    ask(app, "DELETE", f"/v1/responses/{first['id']}")
    create(app, input="four", previous_response_id=third["id"])
    assert runtime.rendered[-1][0][0].text == "one", "a turn keeps what led to it"


def test_input_may_refer_to_messages_of_stored_responses():
    runtime = FakeRuntime()
    app = make_app(runtime)
    first = create(app, input="one")
    (asked,) = ask(app, "GET", f"/v1/responses/{first['id']}/input_items").json()["data"]
    references = [{"type": "item_reference", "id": item_id} for item_id in (asked["id"], first["output"][0]["id"])]
    create(app, input=[*references, {"role": "user", "content": "two"}])
    assert [(message.role, message.text) for message in runtime.rendered[-1][0]] == [
        ("user", "one"),
        ("assistant", "Hello!"),
        ("user", "two"),
    ]


@pytest.mark.parametrize("tail", ["_1", "_x", "_0_0", "x"])
def test_a_reference_to_what_is_not_stored_is_refused(tail: str):
    app = make_app(FakeRuntime())
    item_id = create(app)["output"][0]["id"] + tail
    refused = ask(app, "POST", "/v1/responses", json={"input": [{"type": "item_reference", "id": item_id}]})
    error = refused.json()["error"]
    assert (refused.status_code, error["param"], error["code"]) == (404, "input[0]", "response_not_found")


def test_what_is_not_stored_cannot_be_fetched_or_gone_on_from():
    app = make_app(FakeRuntime())
    response_id = create(app, store=False)["id"]
    missing = fetch(app, response_id)
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "response_not_found")
    refused = ask(app, "POST", "/v1/responses", json={"input": "hi", "previous_response_id": response_id})
    assert (refused.status_code, refused.json()["error"]["param"]) == (404, "previous_response_id")
    assert ask(app, "DELETE", f"/v1/responses/{response_id}").status_code == 404


def test_a_stored_response_is_not_streamed_again():
    app = make_app(FakeRuntime())
    response_id = create(app)["id"]
    refused = ask(app, "GET", f"/v1/responses/{response_id}?stream=true")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "stream")
    assert ask(app, "GET", f"/v1/responses/{response_id}?stream=false").status_code == 200


def test_delete():
    app = make_app(FakeRuntime())
    response_id = create(app)["id"]
    gone = ask(app, "DELETE", f"/responses/{response_id}").json()
    assert gone == {"id": response_id, "object": "response", "deleted": True}
    assert fetch(app, response_id).status_code == 404


def test_only_what_runs_in_the_background_can_be_cancelled():
    app = make_app(FakeRuntime())
    refused = ask(app, "POST", f"/v1/responses/{create(app)['id']}/cancel")
    assert refused.status_code == 400
    assert "background" in refused.json()["error"]["message"]


ITEMS: list[Any] = [
    {"role": "developer", "content": "D"},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "U"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "T"}]},
    {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "R"},
    {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "A"}]},
]


def test_items_become_messages_and_nothing_of_the_history_is_lost():
    runtime = FakeRuntime()
    create(make_app(runtime), input=ITEMS)
    messages = runtime.rendered[0][0]
    assert [(m.role, m.text) for m in messages] == [
        ("developer", "D"),
        ("user", "U"),
        ("assistant", ""),
        ("tool", "R"),
        ("assistant", "A"),
    ]
    assert messages[2].reasoning == "T"
    assert messages[2].tool_calls == ({"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}},)
    assert messages[3].tool_call_id == "c1"


@pytest.mark.parametrize("as_summary", [{}, {"reasoning": {"summary": "auto"}}])
def test_reasoning_belongs_to_the_stored_answer_as_content_and_as_summary(as_summary: dict[str, Any]):
    runtime = FakeRuntime(lambda submit: ["<think>T</think>A", {"text": "", "finish_reason": "stop"}])
    app = make_app(runtime)
    conversation = ask(app, "POST", "/v1/conversations", json={}).json()["id"]
    first = create(app, **as_summary)
    create(app, previous_response_id=first["id"])
    create(app, conversation=conversation, **as_summary)
    create(app, conversation=conversation)
    for turn in (1, 3):
        assert [(m.text, m.reasoning) for m in runtime.rendered[turn][0]] == [("hi", None), ("A", "T"), ("hi", None)]


@pytest.mark.parametrize(
    "item",
    [
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}},
        {"type": "code_interpreter_call", "id": "ci_1", "code": "1", "container_id": "c", "outputs": None},
        {"type": "mcp_call", "id": "mcp_1", "server_label": "s", "name": "n", "arguments": "{}", "output": "o"},
        {"type": "compaction", "id": "cmp_1", "encrypted_content": "x"},
    ],
)
def test_calls_of_hosted_tools_in_a_conversation_are_left_out_and_listed(item: dict[str, Any]):
    runtime = FakeRuntime()
    body = {"input": [*ITEMS[:3], item, *ITEMS[3:]]}
    response = ask(make_app(runtime), "POST", "/v1/responses", json=body)
    assert response.status_code == 200
    assert response.headers["x-stoker-ignored"] == "input[3]"
    create(make_app(runtime), input=ITEMS)
    assert runtime.rendered[0][0] == runtime.rendered[1][0]
    (bad,) = [{"type": "function_call_output", "call_id": "c1", "output": 5}]
    response = ask(make_app(runtime), "POST", "/v1/responses", json={"input": [item, bad]})
    assert response.json()["error"]["param"] == "input[1].content"


def test_thoughts_are_sent_back_as_one_text():
    for sent in (sealed("Twö\ncities."), "gAAAA-of-another-server", "stoker-1:%%%"):
        runtime = FakeRuntime()
        thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": sent}
        create(make_app(runtime), input=[ITEMS[0], thought, {"role": "assistant", "content": "A"}])
        wanted = "Twö\ncities." if sent == sealed("Twö\ncities.") else None
        assert [m.reasoning for m in runtime.rendered[0][0]] == [None, wanted]


def test_thoughts_of_an_answer_that_said_nothing_are_no_later_answer_s():
    runtime = FakeRuntime()
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "T"}]}
    items = [ITEMS[1], thought, {"role": "user", "content": "so?"}, {"role": "assistant", "content": "A"}]
    create(make_app(runtime), input=items)
    assert [m.reasoning for m in runtime.rendered[0][0]] == [None, None, None]


def test_a_reference_to_an_earlier_message_keeps_its_text_beside_its_thoughts():
    app, thought = make_app(runtime := FakeRuntime()), {"type": "reasoning", "content": [{"text": "T"}]}
    first = create(
        app, input=[ITEMS[1], thought, {"role": "assistant", "content": "A"}, {"role": "user", "content": "B"}]
    )
    listed = ask(app, "GET", f"/v1/responses/{first['id']}/input_items?order=asc").json()["data"]
    reference = {"type": "item_reference", "id": listed[1]["id"]}
    create(app, input=[ITEMS[1], reference, {"role": "user", "content": "C"}])
    assert [(m.text, m.reasoning) for m in runtime.rendered[-1][0]] == [("U", None), ("A", "T"), ("C", None)]


def test_null_in_an_item_is_the_same_as_not_given():
    runtime = FakeRuntime()
    thoughts = [{"type": "reasoning_text", "text": None}, {"type": "reasoning_text", "text": "T"}]
    items: list[Any] = [
        {"type": None, "role": "user", "content": [{"type": None, "text": "U"}]},
        {"type": "reasoning", "content": thoughts, "summary": None},
        {"type": None, "role": "assistant", "content": "A"},
    ]
    create(make_app(runtime), input=items)
    messages = runtime.rendered[0][0]
    assert [(m.role, m.text, m.reasoning) for m in messages] == [("user", "U", None), ("assistant", "A", "T")]


@pytest.mark.parametrize(
    ("sent", "where"),
    [
        (None, "input"),
        ([], "input"),
        ([{"role": "user", "content": 5}], "input[0].content"),
        ([{"type": {"a": 1}}], "input[0]"),
        ([{"type": "reasoning", "content": [5]}], "input[0]"),
        (
            [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}],
            "input[0].content[0].image_url",
        ),
        ([{"type": "reasoning", "summary": []}], "input"),
    ],
)
def test_malformed_input_is_refused_by_name(sent: Any, where: str):
    response = ask(make_app(FakeRuntime()), "POST", "/v1/responses", json={"input": sent})
    assert (response.status_code, response.json()["error"]["param"]) == (400, where)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"background": True, "store": False}, "background"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"top_logprobs": 21}, "top_logprobs"),
    ],
)
def test_what_cannot_be_done_is_refused(body: dict[str, Any], param: str):
    response = ask(make_app(FakeRuntime()), "POST", "/v1/responses", json={"input": "hi", **body})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_tokens_are_counted_with_the_whole_conversation():
    app = make_app(FakeRuntime())
    first = create(app, input="one")
    body = {"input": "two", "previous_response_id": first["id"], "instructions": "S"}
    counted = ask(app, "POST", "/v1/responses/input_tokens", json=body).json()
    prompt = "<system>S<user>one<assistant>Hello!<user>two"
    assert counted == {"object": "response.input_tokens", "input_tokens": len(prompt) + 1}


class Background:
    """One loop for several requests, so that a response can run between them."""

    def __init__(self, runtime: FakeRuntime) -> None:
        transport = httpx.ASGITransport(app=make_app(runtime))
        self.client = httpx.AsyncClient(transport=transport, base_url="http://test")

    async def start(self, **fields: Any) -> str:
        body = {"input": "hi", "background": True, **fields}
        reply = (await self.client.post("/v1/responses", json=body)).json()
        assert (reply["status"], reply["output"], reply["background"]) == ("queued", [], True)
        return reply["id"]

    async def get(self, response_id: str) -> Any:
        return (await self.client.get(f"/v1/responses/{response_id}")).json()

    async def until(self, response_id: str, status: str, text: str = "") -> Any:
        async with asyncio.timeout(BOUND_S):
            while True:
                await asyncio.sleep(0)  # a request without a network never lets another task run
                reply = await self.get(response_id)
                if reply["status"] == status and text in str(reply["output"]):
                    return reply


def test_background_response_is_fetched_when_it_is_complete():
    async def go() -> None:
        gate = asyncio.Event()
        runtime = FakeRuntime(lambda submit: ["a", gate, "b"])
        background = Background(runtime)
        response_id = await background.start()
        reply = await background.until(response_id, "in_progress", "a")
        assert reply["output"][0]["status"] == "in_progress"
        early = await background.client.post("/v1/responses", json={"input": "x", "previous_response_id": response_id})
        assert early.status_code == 400
        gate.set()
        reply = await background.until(response_id, "completed")
        assert reply["output"][0]["content"][0]["text"] == "ab"
        again = await background.client.post(f"/v1/responses/{response_id}/cancel")
        assert again.json()["status"] == "completed", "it is too late to cancel it"

    asyncio.run(go())


@pytest.mark.parametrize("verb", ["cancel", "delete"])
def test_background_response_is_ended(verb: str):
    async def go() -> None:
        runtime = FakeRuntime(lambda submit: ["a", asyncio.Event(), "b"])
        background = Background(runtime)
        response_id = await background.start()
        await background.until(response_id, "in_progress", "a")
        if verb == "cancel":
            reply = (await background.client.post(f"/v1/responses/{response_id}/cancel")).json()
            assert (reply["status"], reply["output"][0]["status"]) == ("cancelled", "incomplete")
            assert reply == await background.get(response_id)
        else:
            assert (await background.client.delete(f"/v1/responses/{response_id}")).json()["deleted"]
            assert (await background.get(response_id))["error"]["code"] == "response_not_found"
        for _ in range(100):
            await asyncio.sleep(0)
        assert runtime.held == set()

    asyncio.run(go())


def test_background_response_that_fails_says_so():
    async def go() -> None:
        background = Background(FakeRuntime(lambda submit: ["a", EngineCrashed("died")]))
        reply = await background.until(await background.start(), "failed")
        assert reply["error"]["code"] == "engine_crashed"

    asyncio.run(go())


def test_server_that_keeps_none_says_so():
    app = make_app(FakeRuntime(), max_stored_responses=0)
    reply = create(app)
    assert reply["store"] is False
    missing = fetch(app, reply["id"])
    assert missing.status_code == 404
    assert "stores no responses" in missing.json()["error"]["message"]
    for name in ("store", "background"):
        refused = ask(app, "POST", "/v1/responses", json={"input": "hi", name: True})
        assert refused.status_code == 400
        assert (refused.json()["error"]["param"], refused.json()["error"]["code"]) == (name, "unsupported_parameter")
    assert create(app, store=False)["store"] is False
