"""Tools of the responses API as agents offer them: in namespaces, and beside tools that OpenAI runs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.server.fake_runtime import FakeRuntime, ask, make_app, position

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"path": {"type": "string"}}}
READ = {"type": "function", "name": "read", "description": "Reads a file.", "parameters": SCHEMA}
NOTE = {"type": "custom", "name": "note"}
FILES = {"type": "namespace", "name": "files", "description": "Files of the project.", "tools": [READ, NOTE]}
CALL = '<tool_call>\n{"name": "files.read", "arguments": {"path": "a"}}\n</tool_call>'
TEXT = '<tool_call>\n{"name": "files.note", "arguments": {"input": "b"}}\n</tool_call>'
WEB = {"type": "web_search", "external_web_access": True}


def respond(tools: list[Any], *texts: str, **fields: Any) -> tuple[FakeRuntime, Any]:
    runtime = FakeRuntime(lambda submit: [*texts, {"text": "", "finish_reason": "stop"}])
    runtime.model_card = replace(runtime.model_card, can_constrain_calls=True)
    return runtime, ask(make_app(runtime), "POST", "/v1/responses", json={"input": "hi", "tools": tools, **fields})


def listed(runtime: FakeRuntime) -> dict[str, str]:
    """The tools that the chat template lists, with their descriptions."""
    tools = [tool["function"] for tool in runtime.rendered[-1][1]["tools"]]
    return {tool["name"]: tool.get("description", "") for tool in tools}


def test_a_tool_of_a_namespace_has_one_name_for_the_model():
    runtime, response = respond([READ, FILES])
    assert response.status_code == 200
    about = "(Tools files.*: Files of the project.) Reads a file."
    assert listed(runtime) == {"read": "Reads a file.", "files.read": about, "files.note": ""}


def test_a_call_has_the_namespace_and_the_name_apart():
    _, response = respond([READ, FILES], CALL, TEXT)
    first, second = response.json()["output"]
    assert (first["type"], first["namespace"], first["name"]) == ("function_call", "files", "read")
    assert (second["type"], second["namespace"], second["name"]) == ("custom_tool_call", "files", "note")
    _, response = respond([READ, FILES], CALL.replace("files.", ""))
    assert "namespace" not in response.json()["output"][0]


def test_the_events_of_a_stream_have_them_apart_too():
    _, response = respond([FILES], CALL, stream=True)
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    items = [event["item"] for event in events if "item" in event]
    assert [(item["namespace"], item["name"]) for item in items] == [("files", "read")] * 2


def test_a_call_that_is_sent_back_has_one_name_again():
    call = {"type": "function_call", "call_id": "c", "namespace": "files", "name": "read", "arguments": "{}"}
    text = {"type": "custom_tool_call", "call_id": "d", "namespace": "files", "name": "note", "input": "b"}
    runtime, response = respond([FILES], input=[{"role": "user", "content": "hi"}, call, text])
    assert response.status_code == 200
    calls = runtime.rendered[-1][0][-1].tool_calls
    assert [call["function"]["name"] for call in calls] == ["files.read", "files.note"]  # pyright: ignore


def test_a_stored_call_has_one_name_in_the_next_turn():
    runtime = FakeRuntime(lambda submit: [CALL, {"text": "", "finish_reason": "stop"}])
    app = make_app(runtime)
    first = ask(app, "POST", "/v1/responses", json={"input": "hi", "tools": [FILES]}).json()
    result = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "x"}
    body = {"input": [result], "tools": [FILES], "previous_response_id": first["id"]}
    assert ask(app, "POST", "/v1/responses", json=body).status_code == 200
    (call,) = runtime.rendered[-1][0][1].tool_calls
    assert call["function"]["name"] == "files.read"  # pyright: ignore


def test_the_items_of_an_input_have_them_apart_as_they_were_sent():
    runtime = FakeRuntime(lambda submit: [CALL, TEXT, {"text": "", "finish_reason": "stop"}])
    app = make_app(runtime)
    dotted = {"type": "function_call", "call_id": "c", "name": "a.read", "arguments": "{}"}
    first = ask(app, "POST", "/v1/responses", json={"input": [dotted], "tools": [FILES]}).json()
    again = {"input": first["output"], "previous_response_id": first["id"]}
    second = ask(app, "POST", "/v1/responses", json=again).json()
    items = ask(app, "GET", f"/v1/responses/{second['id']}/input_items?order=asc").json()["data"]
    assert [(item.get("namespace"), item["name"]) for item in items] == [
        (None, "a.read"),
        *[("files", "read"), ("files", "note")] * 2,
    ]
    calls = [call for message in runtime.rendered[-1][0] for call in message.tool_calls]
    assert {"namespace" in call for call in calls} == {False}, "a template prints all that a call has"


@pytest.mark.parametrize("hosted", [WEB, {"type": "image_generation"}, {"type": "tool_search", "execution": "client"}])
def test_a_tool_that_openai_runs_is_left_out_beside_the_client_s_own(hosted: Any):
    runtime, response = respond([hosted, READ])
    assert response.status_code == 200
    assert list(listed(runtime)) == ["read"]
    assert response.headers["x-stoker-ignored"] == "tools[0]"


@pytest.mark.parametrize("tools", [[WEB], [READ, {"type": "file_search"}], [READ, {"type": "namespace", "name": "x"}]])
def test_what_is_not_available_is_refused_by_its_place(tools: list[Any]):
    _, response = respond(tools)
    assert response.status_code == 400
    assert f"tools[{len(tools) - 1}]" in response.json()["error"]["message"]


def test_a_tool_that_openai_runs_cannot_be_required():
    _, response = respond([WEB, READ], tool_choice={"type": "web_search"})
    assert response.status_code == 400


def test_hosted_tools_in_a_list_of_allowed_tools_are_left_out():
    allowed = [{"type": "web_search"}, {"type": "function", "name": "read"}]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": allowed}
    _, response = respond([WEB, READ, NOTE], CALL.replace("files.", ""), tool_choice=choice)
    assert [item["name"] for item in response.json()["output"]] == ["read"]
    _, response = respond([WEB, READ], tool_choice={**choice, "mode": "required", "tools": allowed[:1]})
    assert response.status_code == 400


@pytest.mark.parametrize("tools", ["read", 5, {"name": "read"}, ["read"], [{"type": "mcp"}], [{"function": "read"}]])
def test_a_malformed_list_of_allowed_tools_is_refused(tools: Any):
    for inner in ({"tools": tools}, {"allowed_tools": {"tools": tools}}, {"allowed_tools": ["read"]}):
        _, response = respond([READ], tool_choice={"type": "allowed_tools", "mode": "auto", **inner})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "tool_choice.tools")


def test_references_to_an_output_are_the_same_as_the_output_sent_back():
    texts = ["<think>T</think>A", CALL, TEXT, {"text": "B", "finish_reason": "stop"}]
    runtime = FakeRuntime(lambda submit: texts)
    app = make_app(runtime)
    first = ask(app, "POST", "/v1/responses", json={"input": "hi", "tools": [FILES]}).json()
    kinds = [item["type"] for item in first["output"]]
    assert kinds == ["reasoning", "message", "function_call", "custom_tool_call", "message"]
    results = [
        {"type": f"{item['type']}_output", "call_id": item["call_id"], "output": "x"}
        for item in first["output"]
        if "call_id" in item
    ]
    references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
    for sent in (first["output"], references):
        reply = ask(app, "POST", "/v1/responses", json={"input": [*sent, *results], "tools": [FILES]})
        assert reply.status_code == 200, reply.text
    by_output, by_reference = runtime.rendered[-2][0], runtime.rendered[-1][0]
    assert [message.text for message in by_reference] == ["A", "B", "x", "x"]
    for sent_back, found in zip(by_output, by_reference, strict=True):
        assert (found.text, found.reasoning) == (sent_back.text, sent_back.reasoning)
        assert (found.tool_calls, found.tool_call_id) == (sent_back.tool_calls, sent_back.tool_call_id)
    assert by_reference[0].reasoning == "T"


def test_each_reasoning_of_an_answer_has_an_id_of_its_own():
    app = make_app(
        FakeRuntime(lambda submit: ["<think>T</think>A<think>U</think>B", {"text": "", "finish_reason": "stop"}])
    )
    output = ask(app, "POST", "/v1/responses", json={"input": "hi"}).json()["output"]
    assert [item["type"] for item in output] == ["reasoning", "message"] * 2
    assert len({item["id"] for item in output}) == 4


def test_too_many_references_are_refused_before_any_is_looked_up():
    app = make_app(FakeRuntime())
    body = {"input": [{"type": "item_reference", "id": "msg_0_0"}] * 10_001}
    error = ask(app, "POST", "/v1/responses", json=body).json()["error"]
    assert (error["param"], error["code"]) == ("input", "invalid_input")


def test_the_items_that_are_referred_to_have_a_maximum_size_together(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("stoker.server.dialects.responses.requests._MAX_REFERENCED_BYTES", 100_000)
    app = make_app(FakeRuntime())
    items = [{"role": "user", "content": "x" * 20_000}]
    conversation = ask(app, "POST", "/v1/conversations", json={"items": items}).json()["id"]
    listed = ask(app, "GET", f"/v1/conversations/{conversation}/items").json()["data"]
    for count, status in ((2, 200), (3, 400)):
        body = {"items": [{"type": "item_reference", "id": listed[0]["id"]}] * count}
        reply = ask(app, "POST", f"/v1/conversations/{conversation}/items", json=body)
        assert reply.status_code == status, reply.text


def test_references_to_items_of_an_input_are_those_items():
    runtime = FakeRuntime()
    app = make_app(runtime)
    call = {"type": "function_call", "call_id": "c", "name": "read", "arguments": "{}"}
    other = {"type": "custom_tool_call", "call_id": "d", "name": "note", "input": "b"}
    results = [{"type": "function_call_output", "call_id": name, "output": name} for name in ("c", "d")]
    sent = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "A"}, call, other, *results]
    first = ask(app, "POST", "/v1/responses", json={"input": sent}).json()
    made = ask(app, "POST", "/v1/conversations", json={"items": sent}).json()
    for path in (f"responses/{first['id']}/input_items", f"conversations/{made['id']}/items"):
        items = ask(app, "GET", f"/v1/{path}?order=asc").json()["data"]
        references = [{"type": "item_reference", "id": item["id"]} for item in items]
        assert ask(app, "POST", "/v1/responses", json={"input": references}).status_code == 200
        messages, wanted = runtime.rendered[-1][0], runtime.rendered[0][0]
        assert [(m.role, m.text, m.tool_calls) for m in messages] == [(m.role, m.text, m.tool_calls) for m in wanted]


THOUGHT = ["<think>", "Hm", ".", "</think>", "\n\n"]
SAID = ["I", " look", ".", "\n"]
CALLED = ["<tool_call>", "\n", '{"name": "read", ', '"arguments": {"pa', 'th": "a"}', "}", "\n", "</tool_call>"]
MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>")


def with_logprobs(tokens: list[str], **fields: Any) -> Any:
    """A step with some tokens, of which the markers are not part of the text."""
    text, marks = "", list[tuple[int, str]]()
    for token in tokens:
        if token in MARKERS:
            marks.append((len(text), token))
        else:
            text += token
    logprobs = [position(token, -0.5) for token in tokens]
    return {"text": text, "marks": marks, "logprobs": logprobs, "token_ids": [1] * len(tokens), **fields}


def logprobs_and_text(item: Any) -> tuple[str, str]:
    (part,) = item["content"]
    return "".join(each["token"] for each in part["logprobs"]), part["text"]


@pytest.mark.parametrize("is_stream", [True, False])
def test_log_probabilities_of_thoughts_and_calls_are_not_those_of_a_message(is_stream: bool):
    tokens = [*THOUGHT, *SAID, *CALLED]
    steps = [with_logprobs([token]) for token in tokens] if is_stream else [with_logprobs(tokens)]
    runtime = FakeRuntime(lambda submit: [*steps, {"text": "", "finish_reason": "stop"}])
    runtime.model_card = replace(runtime.model_card, can_constrain_calls=True)
    include = ["message.output_text.logprobs"]
    body = {"input": "hi", "tools": [READ], "include": include, "stream": is_stream}
    response = ask(make_app(runtime), "POST", "/v1/responses", json=body)
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    reply = events[-1]["response"] if is_stream else response.json()
    thought, message, call = reply["output"]
    assert (thought["type"], message["type"], call["type"]) == ("reasoning", "message", "function_call")
    assert json.loads(call["arguments"]) == {"path": "a"}
    assert logprobs_and_text(message) == ("I look.", "I look.")
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert all(event["delta"] == "".join(p["token"] for p in event["logprobs"]) for event in deltas)
