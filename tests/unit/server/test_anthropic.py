"""Anthropic's messages API: what its clients send, and to the letter what they get."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import msgspec
import pytest

from stoker.errors import BackendError, ContextLengthExceeded, ModelNotLoaded, Overloaded, StokerError
from tests.unit.server.fake_runtime import CARD, LOADING, FakeRuntime, RawClient, ask, make_app
from tests.unit.server.test_connection import held_open, run

HI = [{"role": "user", "content": "hi"}]


def message(runtime: FakeRuntime, **body: Any) -> httpx.Response:
    return ask(make_app(runtime), "POST", "/v1/messages", json={"max_tokens": 9, "messages": HI, **body})


def count(runtime: FakeRuntime, **body: Any) -> httpx.Response:
    return ask(make_app(runtime), "POST", "/v1/messages/count_tokens", json={"messages": HI, **body})


def stream_events(response: httpx.Response) -> list[Any]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = response.text.split("\n\n")
    assert blocks.pop() == ""
    events: list[Any] = []
    for block in blocks:
        name, data = block.split("\n")
        event: Any = msgspec.json.decode(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def test_whole_message():
    response = message(FakeRuntime())
    assert response.status_code == 200
    body = response.json()
    assert body.pop("id").startswith("msg_")
    assert body == {
        "type": "message",
        "role": "assistant",
        "model": "tiny",
        "content": [{"type": "text", "text": "Hello!"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 5,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 3,
            "output_tokens": 3,
        },
    }


def test_stream_has_every_event_in_order():
    events = stream_events(message(FakeRuntime(), stream=True))
    start = events[0]["message"]
    assert start.pop("id").startswith("msg_")
    assert start["usage"]["input_tokens"] == 5
    assert start["usage"]["cache_read_input_tokens"] == 3
    assert (start["content"], start["stop_reason"], start["role"]) == ([], None, "assistant")
    assert [event["type"] for event in events] == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert events[2] == {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    assert events[3]["delta"] == {"type": "text_delta", "text": "Hel"}
    assert events[7]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert events[7]["usage"] == {
        "input_tokens": 5,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 3,
        "output_tokens": 3,
    }


@pytest.mark.parametrize(
    ("last", "reason", "sequence"),
    [
        ({"text": "", "finish_reason": "length"}, "max_tokens", None),
        ({"text": "", "finish_reason": "stop", "stop_match": "END"}, "stop_sequence", "END"),
        ({"text": "", "finish_reason": "stop", "stop_match": 7}, "end_turn", None),
    ],
)
def test_reasons_to_stop(last: dict[str, Any], reason: str, sequence: str | None):
    whole = message(FakeRuntime(lambda submit: ["a", last])).json()
    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, sequence)
    events = stream_events(message(FakeRuntime(lambda submit: ["a", last]), stream=True))
    assert events[-2]["delta"] == {"stop_reason": reason, "stop_sequence": sequence}


def test_empty_answer_is_a_valid_answer():
    runtime = FakeRuntime(lambda submit: [""])
    assert message(runtime).json()["content"] == [{"type": "text", "text": ""}]
    kinds = [event["type"] for event in stream_events(message(runtime, stream=True))]
    assert kinds == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


def rendered(runtime: FakeRuntime) -> list[tuple[str, str]]:
    return [(m.role, m.text) for m in runtime.rendered[-1][0]]


@pytest.mark.parametrize("system", ["be brief", [{"type": "text", "text": "be"}, {"type": "text", "text": "brief"}]])
def test_system_prompt(system: Any):
    runtime = FakeRuntime()
    assert message(runtime, system=system).status_code == 200
    role, text = rendered(runtime)[0]
    assert (role, text.replace("\n", " ")) == ("system", "be brief")


def test_line_that_changes_with_every_request_is_no_part_of_the_prompt():
    runtime = FakeRuntime()
    volatile = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1a2b3;"}
    assert message(runtime, system=[volatile, {"type": "text", "text": "be brief"}]).status_code == 200
    assert rendered(runtime) == [("system", "be brief"), ("user", "hi")]


def test_last_message_of_the_assistant_is_continued():
    runtime = FakeRuntime()
    assert message(runtime, messages=[*HI, {"role": "assistant", "content": "Once"}]).status_code == 200
    flags = runtime.rendered[-1][1]
    off = {"enable_thinking": False, "thinking": False}
    assert flags == {"add_generation_prompt": False, "continue_final_message": True, **off}
    message(runtime)
    assert runtime.rendered[-1][1] == {"add_generation_prompt": True, "continue_final_message": False, **off}


def test_history_of_thoughts_and_tools_reaches_the_template():
    runtime = FakeRuntime()
    thought = {"type": "thinking", "thinking": "hm", "signature": "x"}
    opaque = {"type": "redacted_thinking", "data": "x"}
    use = {"type": "tool_use", "id": "t1", "name": "clock", "input": {"zone": "UTC"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "noon"}]}
    history = [
        *HI,
        {"role": "assistant", "content": [thought, opaque, {"type": "text", "text": "wait"}, use]},
        {"role": "user", "content": [result, {"type": "text", "text": "so?"}]},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]
    assert message(runtime, messages=history).status_code == 200
    sent = runtime.rendered[-1][0]
    assert [m.role for m in sent] == ["user", "assistant", "tool", "user", "assistant", "tool"]
    assert (sent[1].reasoning, sent[1].text) == ("hm", "wait")
    assert sent[1].tool_calls[0]["function"] == {"name": "clock", "arguments": {"zone": "UTC"}}
    assert (sent[2].tool_call_id, sent[2].text) == ("t1", "noon")


def test_calls_of_hosted_tools_in_a_conversation_are_left_out_and_listed():
    runtime = FakeRuntime()
    use = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "rain"}}
    found = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"encrypted_content": "x"}]}
    history = [
        *HI,
        {"role": "assistant", "content": [use, found, {"type": "text", "text": "It rains."}]},
        *HI,
        {"role": "assistant", "content": [use, found]},
        *HI,
    ]
    response = message(runtime, messages=history)
    assert response.status_code == 200
    assert [(m.role, m.text) for m in runtime.rendered[-1][0]] == [
        ("user", "hi"),
        ("assistant", "It rains."),
        ("user", "hi"),
        ("user", "hi"),
    ]
    places = [f"messages[{index}].content[{place}]" for index in (1, 3) for place in (0, 1)]
    assert response.headers["x-stoker-ignored"].split(", ") == places


def test_document_of_plain_text_is_text_with_its_title():
    runtime = FakeRuntime()
    source = {"type": "text", "media_type": "text/plain", "data": "It rains."}
    titled = {"type": "document", "source": source, "title": "Weather", "context": "of today"}
    content = [titled, {"type": "document", "source": source, "title": None}, {"type": "text", "text": "so?"}]
    assert message(runtime, messages=[{"role": "user", "content": content}]).status_code == 200
    assert runtime.rendered[-1][0][0].text == "Weather\nof today\nIt rains.\nIt rains.\nso?"


def test_a_summary_of_anthropic_s_servers_is_a_text_of_the_answer_that_begins_with_it():
    runtime = FakeRuntime()
    summary, mark = {"type": "compaction", "content": "We met."}, {"type": "fallback", "from": {}, "to": {}}
    text = {"type": "text", "text": "Go on."}
    history = [*HI, {"role": "assistant", "content": [summary, mark, text, {**summary, "content": None}]}, *HI]
    response = message(runtime, messages=history)
    assert (response.status_code, response.headers["x-stoker-ignored"]) == (200, "messages[1].content[1]")
    assert [m.text for m in runtime.rendered[-1][0]] == ["hi", "We met.\nGo on.", "hi"]


@pytest.mark.parametrize("kind", ["image", "document", "container_upload", "server_tool_use", "something_new"])
def test_block_that_is_no_text_is_refused_by_its_place(kind: str):
    content = [{"type": "text", "text": "a"}, {"type": kind}]
    response = message(FakeRuntime(), messages=[{"role": "user", "content": content}])
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert "messages[0].content[1]" in error["message"]
    assert kind in error["message"]


@pytest.mark.parametrize(
    "messages",
    [
        None,
        [],
        [{}],
        [{"role": "user"}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": ["x"]}],
        [{"role": "user", "content": [{"text": "x"}]}],
        [{"role": "user", "content": [{"type": None, "text": "x"}]}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "user", "content": [{"type": "tool_result"}]}],
        [{"role": "assistant", "content": [{"type": "tool_use", "id": "x"}]}],
        [{"role": "", "content": "x"}],
        ["hi"],
        "hi",
    ],
)
def test_malformed_messages_are_refused(messages: Any):
    response = message(FakeRuntime(), messages=messages)
    if messages == [{"role": "user"}]:
        assert response.status_code == 200, "content that was not given is empty"
        return
    assert response.status_code == 400
    assert "messages" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("thinking", "is_on"),
    [
        (None, False),
        ({"type": "disabled"}, False),
        ({"type": "adaptive", "display": "summarized"}, None),
        ({"type": "enabled", "budget_tokens": 100}, True),
    ],
)
def test_thinking_is_off_unless_it_is_asked_for(thinking: Any, is_on: bool | None):
    for send in (message, count):
        runtime = FakeRuntime()
        assert send(runtime, **({} if thinking is None else {"thinking": thinking})).status_code == 200
        assert runtime.rendered[-1][1].get("enable_thinking") is is_on


def test_thinking_that_is_not_asked_for_is_as_the_settings_say():
    for path, more in (("/v1/messages", {"max_tokens": 9}), ("/v1/messages/count_tokens", {})):
        runtime = FakeRuntime()
        app = make_app(runtime, anthropic_thinking="template")
        for thinking in ({}, {"thinking": {"type": "disabled"}}):
            assert ask(app, "POST", path, json={"messages": HI, **more, **thinking}).status_code == 200
        assert [kwargs.get("enable_thinking") for _, kwargs in runtime.rendered] == [None, False]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("no such city", "Error: no such city"),
        ("Error: no such city", "Error: no such city"),
        (None, "Error:"),
        ([{"type": "text", "text": "no such city"}], "Error:\nno such city"),
    ],
)
def test_a_result_that_is_an_error_says_so(content: Any, text: str):
    runtime = FakeRuntime()
    use = {"type": "tool_use", "id": "t1", "name": "clock", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "is_error": True, "content": content}
    history = [*HI, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    assert message(runtime, messages=history).status_code == 200
    assert runtime.rendered[-1][0][-1].text == text


def test_value_out_of_range_is_named_as_the_client_named_it():
    body = {"messages": HI, "max_tokens": 5, "stop_sequences": [""]}
    response = ask(make_app(FakeRuntime()), "POST", "/v1/messages", json=body)
    assert response.json()["error"]["message"].startswith("`stop_sequences` ")


@pytest.mark.parametrize("path", ["/messages", "/messages/count_tokens"])
def test_paths_without_the_version_mean_the_same(path: str):
    app = make_app(FakeRuntime())
    assert ask(app, "POST", path, json={"messages": HI, "max_tokens": 5}).status_code == 200
    assert ask(app, "POST", path, json={"messages": []}).json()["type"] == "error"


def test_max_tokens_is_required():
    response = ask(make_app(FakeRuntime()), "POST", "/v1/messages", json={"messages": HI})
    assert response.status_code == 400
    assert "max_tokens" in response.json()["error"]["message"]


def test_count_tokens_counts_the_prompt_and_asks_for_nothing():
    runtime = FakeRuntime()
    assert count(runtime, system="s").json() == {"input_tokens": 1 + len("<system>s<user>hi")}
    assert runtime.submits == []
    assert count(runtime, messages=[]).status_code == 400


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (Overloaded("full"), 429, "rate_limit_error"),
        (ModelNotLoaded("loading"), 529, "overloaded_error"),
        (BackendError("x"), 500, "api_error"),
    ],
)
def test_errors_have_the_clients_shape(error: StokerError, status: int, kind: str):
    runtime = FakeRuntime()
    runtime.refuse = lambda submit: error
    response = message(runtime, stream=True)
    assert response.status_code == status
    body = response.json()
    assert body["type"] == "error"
    assert body["error"] == {"type": kind, "message": error.message}
    assert body["request_id"] == response.headers["request-id"]
    assert ("retry-after" in response.headers) == (status in (429, 529))


def test_prompt_that_is_too_long_says_it_in_the_words_that_agents_know():
    runtime = FakeRuntime()
    runtime.refuse = lambda submit: ContextLengthExceeded(
        "the request exceeds the available context size", num_prompt_tokens=9, context_size=8
    )
    text = message(runtime).json()["error"]["message"]
    assert text.startswith("prompt is too long: 9 tokens > 8 maximum")
    assert "exceeds the available context size" in text


def test_error_in_the_middle_of_a_stream_is_its_last_event():
    events = stream_events(message(FakeRuntime(lambda submit: ["a", BackendError("boom")]), stream=True))
    assert events[-1]["type"] == "error"
    assert events[-1]["error"] == {"type": "api_error", "message": "boom"}


def test_bug_of_ours_says_nothing_of_itself():
    runtime = FakeRuntime(lambda submit: ["a", ValueError("secret")])
    whole = message(runtime)
    assert (whole.status_code, whole.json()["error"]["type"]) == (500, "api_error")
    streamed = message(runtime, stream=True)
    assert stream_events(streamed)[-1]["error"]["type"] == "api_error"
    assert "secret" not in whole.text + streamed.text


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/v1/messages", 405, "invalid_request_error"),
        ("POST", "/v1/messages/nothing", 404, "not_found_error"),
    ],
)
def test_wrong_paths_and_methods_have_the_clients_shape(method: str, path: str, status: int, kind: str):
    response = ask(make_app(FakeRuntime()), method, path)
    assert (response.status_code, response.json()["error"]["type"]) == (status, kind)


def test_body_that_is_too_large():
    app = make_app(FakeRuntime(), max_body_bytes=10)
    response = ask(app, "POST", "/v1/messages", json={"messages": HI})
    assert (response.status_code, response.json()["error"]["type"]) == (413, "request_too_large")


def test_model_that_is_not_served_is_not_found():
    response = ask(make_app(FakeRuntime(), strict=True), "POST", "/v1/messages", json={"model": "x", "messages": HI})
    assert (response.status_code, response.json()["error"]["type"]) == (404, "not_found_error")


def test_answers_529_while_the_model_loads():
    runtime = FakeRuntime()
    runtime.state = LOADING
    assert message(runtime).status_code == 529


def test_beta_flag_and_headers_do_no_harm():
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "a,b", "x-api-key": "k"}
    body = {"max_tokens": 9, "messages": HI}
    app = make_app(FakeRuntime())
    assert ask(app, "POST", "/v1/messages?beta=true", json=body, headers=headers).status_code == 200


def test_quiet_stream_gets_pings():
    async def test() -> None:
        gate = asyncio.Event()
        app = make_app(FakeRuntime(held_open(gate)), keep_alive_s=0.01)
        client = RawClient(app, "/v1/messages", {"max_tokens": 9, "messages": HI, "stream": True})
        assert b"message_start" in await client.next_body()
        assert await client.next_body() == b'event: ping\ndata: {"type":"ping"}\n\n'
        gate.set()
        while b"message_stop" not in await client.next_body():
            pass
        await client.task

    run(test())


def test_models_have_the_shape_of_the_client_that_asks():
    app, headers = make_app(FakeRuntime()), {"anthropic-version": "2023-06-01"}
    listed = ask(app, "GET", "/v1/models", headers=headers).json()
    (entry,) = listed["data"]
    assert (listed["first_id"], listed["last_id"], listed["has_more"]) == ("tiny", "tiny", False)
    assert (entry["id"], entry["type"], entry["created_at"]) == ("tiny", "model", "2023-11-14T22:13:20+00:00")
    assert entry["max_input_tokens"] == entry["max_tokens"] == CARD.context_size
    assert ask(app, "GET", "/v1/models/tiny", headers=headers).json() == entry
    missing = ask(app, "GET", "/v1/models/other", headers=headers)
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")
    assert ask(app, "GET", "/v1/models").json()["object"] == "list"
