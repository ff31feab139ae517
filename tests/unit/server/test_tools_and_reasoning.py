"""Reasoning and tool calls in every dialect: the same answer of a model, streamed and whole."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import jsonschema
import pytest
from msgspec.structs import replace
from starlette.types import ASGIApp

from stoker.chat.constraints import response_grammar
from tests.unit.server.fake_runtime import FakeRuntime, Step, ask, make_app

FUNCTION = {
    "name": "weather",
    "description": "Says how the weather is.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
TOOLS = [{"type": "function", "function": FUNCTION}]
HI = [{"role": "user", "content": "How is the weather in Zürich and Bern?"}]
CALLS = [{"city": "Zürich"}, {"city": "Bern"}]
ANSWER = (
    "<think>\nTwo cities.\n</think>\n\nI look.\n"
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>'
)
TRUNCATED = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zü'


def app_of(text: str = ANSWER, finish_reason: str = "stop") -> ASGIApp:
    """A model that writes this, a few characters a step."""
    steps: list[Step] = [*(text[at : at + 3] for at in range(0, len(text), 3))]
    last: Step = {"text": "", "finish_reason": finish_reason}
    return make_app(FakeRuntime(lambda submit: [*steps, last]))


def chat(app: ASGIApp, **fields: Any) -> Any:
    return ask(app, "POST", "/v1/chat/completions", json={"messages": HI, "tools": TOOLS, **fields})


def test_chat_completion_whole() -> None:
    (choice,) = chat(app_of()).json()["choices"]
    message = choice["message"]
    assert choice["finish_reason"] == "tool_calls"
    assert (message["reasoning_content"], message["content"]) == ("Two cities.", "I look.")
    assert [json.loads(call["function"]["arguments"]) for call in message["tool_calls"]] == CALLS
    ids = [call["id"] for call in message["tool_calls"]]
    assert len(set(ids)) == 2
    assert all(call_id.startswith("call_") and len(call_id) == 29 for call_id in ids)


def test_chat_completion_streamed() -> None:
    chunks = [json.loads(event) for event in _data(chat(app_of(), stream=True))]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Two cities."
    assert "".join(delta.get("content", "") for delta in deltas) == "I look."
    pieces = [call for delta in deltas for call in delta.get("tool_calls", ())]
    for index, arguments in enumerate(CALLS):
        own = [piece for piece in pieces if piece["index"] == index]
        assert own[0]["function"]["name"] == "weather"
        assert {"id", "type"} <= own[0].keys()
        assert json.loads("".join(piece["function"]["arguments"] for piece in own)) == arguments
        assert len(own) > 2, "arguments come as the model writes them"
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_call_without_content_has_null_content() -> None:
    text = ANSWER[ANSWER.index("<tool_call>") :]
    assert chat(app_of(text)).json()["choices"][0]["message"]["content"] is None


def test_a_call_that_is_cut_off_ends_with_length() -> None:
    (choice,) = chat(app_of(TRUNCATED, "length")).json()["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "Zü'


def test_without_tools_calls_are_content() -> None:
    (choice,) = ask(app_of(), "POST", "/v1/chat/completions", json={"messages": HI}).json()["choices"]
    assert choice["finish_reason"] == "stop"
    assert "<tool_call>" in choice["message"]["content"]


@pytest.mark.parametrize("choice", [None, "auto", {"type": "allowed_tools", "tools": [{"name": "weather"}]}])
def test_tool_choices_that_leave_it_to_the_model(choice: Any) -> None:
    assert chat(app_of(), tool_choice=choice).json()["choices"][0]["finish_reason"] == "tool_calls"


def test_tool_choice_none_offers_tools_and_reads_none() -> None:
    (choice,) = chat(app_of(), tool_choice="none").json()["choices"]
    assert choice["finish_reason"] == "stop"
    assert "tool_calls" not in choice["message"]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_without_grammars_of_calls_a_required_one_is_a_json_schema(choice: Any) -> None:
    said = '{"tool_calls": [{"name": "weather", "arguments": {"city": "Bern"}}]}'
    runtime = FakeRuntime(lambda submit: [said])
    response = chat(make_app(runtime), tool_choice=choice)
    (call,) = response.json()["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Bern"}
    outline = runtime.submits[0].outline
    assert outline is not None
    assert outline.grammar is not None
    schema = json.loads(outline.grammar.text)
    jsonschema.validate(json.loads(said), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"tool_calls": [{"name": "weather", "arguments": {}}]}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"tool_calls": []}, schema)


def plan_of(**fields: Any) -> Any:
    """What a model that can be held to calls must write."""
    runtime = FakeRuntime(lambda submit: ["Yes."])
    runtime.model_card = replace(runtime.model_card, can_constrain_calls=True)
    assert chat(make_app(runtime), **fields).status_code == 200
    outline = runtime.submits[0].outline
    assert outline is not None
    assert outline.grammar is not None
    assert outline.grammar.kind == "calls"
    return json.loads(outline.grammar.text)


OTHER_TOOL = {"type": "function", "function": {"name": "clock", "strict": True}}


def test_the_model_may_choose_and_its_calls_obey_the_schema() -> None:
    plan = plan_of()
    assert (plan["content"], plan["most"]) == (True, None)
    assert [group["trigger"] for group in plan["calls"]] == ["<tool_call>"]
    assert [json.loads(tool["schema"]) for tool in plan["tools"]] == [FUNCTION["parameters"]]


@pytest.mark.parametrize(
    ("choice", "names", "content", "most"),
    [
        ("required", ["weather", "clock"], None, None),
        ({"type": "function", "function": {"name": "clock"}}, ["clock"], None, 1),
        ("clock", ["clock"], None, 1),
        ({"type": "allowed_tools", "tools": [{"name": "clock"}]}, ["clock"], True, None),
    ],
)
def test_a_choice_narrows_the_calls(choice: Any, names: list[str], content: Any, most: int | None) -> None:
    plan = plan_of(tools=[*TOOLS, OTHER_TOOL], tool_choice=choice)
    assert [tool["name"] for tool in plan["tools"]] == names
    assert [tool["is_strict"] for tool in plan["tools"]] == [name == "clock" for name in names]
    assert (plan["content"], plan["most"]) == (content, most)


def test_a_call_is_not_required_of_no_tool() -> None:
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": []}}
    assert chat(app_of(), tool_choice=choice).json()["error"]["param"] == "tool_choice.tools"


def test_one_call_at_most_where_calls_are_not_parallel() -> None:
    assert plan_of(parallel_tool_calls=False)["most"] == 1


def test_no_call_can_be_written_where_none_may_be() -> None:
    assert plan_of(tool_choice="none")["calls"] == []


def test_any_constraint_of_the_content_stands_beside_calls() -> None:
    plan = plan_of(structured_outputs={"regex": "[0-9]+"})
    assert (plan["content"]["kind"], plan["content"]["text"]) == ("regex", "[0-9]+")


def test_a_format_beside_tools_holds_for_the_content() -> None:
    runtime = FakeRuntime(lambda submit: ['{"answer": 1}'])
    schema = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
    format_ = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    message = chat(make_app(runtime), response_format=format_).json()["choices"][0]["message"]
    assert message["content"] == '{"answer": 1}'
    outline = runtime.submits[0].outline
    assert outline is not None
    assert outline.grammar is not None
    assert len(json.loads(outline.grammar.text)["anyOf"]) == 2


@pytest.mark.parametrize("is_stream", [False, True])
def test_calls_stay_in_the_content_for_those_who_read_them(is_stream: bool) -> None:
    reply = chat(app_of(), parse_tool_calls=False, stream=is_stream)
    calls = ANSWER[ANSWER.index("I look.") :]
    if is_stream:
        choices = [json.loads(event)["choices"][0] for event in _data(reply)]
        assert "".join(choice["delta"].get("content", "") for choice in choices) == calls
        assert choices[-1]["finish_reason"] == "stop"
        return
    (choice,) = reply.json()["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (calls, "stop")
    assert (choice["message"]["reasoning_content"], "tool_calls" in choice["message"]) == ("Two cities.", False)


@pytest.mark.parametrize(
    ("form", "in_whole", "in_stream"),
    [("none", True, True), ("deepseek-legacy", False, True), ("deepseek", False, False), ("auto", False, False)],
)
def test_where_reasoning_stands(form: str, in_whole: bool, in_stream: bool) -> None:
    message = chat(app_of(), reasoning_format=form).json()["choices"][0]["message"]
    assert ("<think>" in message["content"], "reasoning_content" in message) == (in_whole, not in_whole)
    chunks = [json.loads(event) for event in _data(chat(app_of(), reasoning_format=form, stream=True))]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert ("<think>" in "".join(delta.get("content", "") for delta in deltas)) == in_stream
    assert any("reasoning_content" in delta for delta in deltas) != in_stream


def test_a_reasoning_format_that_does_not_exist_is_refused() -> None:
    error = chat(app_of(), reasoning_format="r1").json()["error"]
    assert error["param"] == "reasoning_format"


def test_reasoning_has_the_name_of_the_settings() -> None:
    app = make_app(FakeRuntime(lambda submit: [ANSWER]), reasoning_field="reasoning")
    message = chat(app).json()["choices"][0]["message"]
    assert (message["reasoning"], "reasoning_content" in message) == ("Two cities.", False)
    deltas = [json.loads(event)["choices"][0]["delta"] for event in _data(chat(app, stream=True))]
    assert [delta["reasoning"] for delta in deltas if "reasoning" in delta] == ["Two cities."]


def test_older_functions_are_tools() -> None:
    body = {"messages": HI, "functions": [FUNCTION]}
    (choice,) = ask(app_of(), "POST", "/v1/chat/completions", json=body).json()["choices"]
    assert len(choice["message"]["tool_calls"]) == 2


ANTHROPIC_TOOLS = [{"name": "weather", "input_schema": FUNCTION["parameters"]}]


def messages(app: ASGIApp, **fields: Any) -> Any:
    body = {"messages": HI, "max_tokens": 99, "tools": ANTHROPIC_TOOLS, "thinking": {"type": "adaptive"}, **fields}
    return ask(app, "POST", "/v1/messages", json=body)


def test_anthropic_whole() -> None:
    reply = messages(app_of()).json()
    assert reply["stop_reason"] == "tool_use"
    thinking, text, *calls = reply["content"]
    assert (thinking["type"], thinking["thinking"]) == ("thinking", "Two cities.")
    assert (text["type"], text["text"]) == ("text", "I look.")
    assert [call["input"] for call in calls] == CALLS
    assert all(call["type"] == "tool_use" and call["id"].startswith("toolu_") for call in calls)


@pytest.mark.parametrize(
    "text",
    [ANSWER, "<think>\nwhy\n</think>\n\nbecause", "", f"{ANSWER}\nSo I asked.", TRUNCATED],
    ids=["calls", "text", "nothing", "text after calls", "cut off"],
)
@pytest.mark.parametrize("display", ["omitted", "summarized"])
def test_anthropic_s_stream_leads_to_the_whole_message(text: str, display: str) -> None:
    thinking = {"type": "adaptive", "display": display}
    whole = messages(app_of(text), thinking=thinking).json()
    content: list[dict[str, Any]] = []
    pieces = ""
    for event in map(json.loads, _data(messages(app_of(text), stream=True, thinking=thinking))):
        if event["type"] == "content_block_start":
            content.append(event["content_block"])
            pieces = ""
        elif event["type"] == "content_block_delta":
            kind, delta = event["delta"].pop("type"), event["delta"]
            pieces += delta.get("partial_json", "")
            for name in delta.keys() - {"partial_json"}:
                content[-1][name] = content[-1].get(name, "") + delta[name]
            assert kind in ("text_delta", "thinking_delta", "signature_delta", "input_json_delta")
        elif event["type"] == "content_block_stop" and content[-1]["type"] == "tool_use":
            with suppress(ValueError):  # one that was cut off has no input in a whole message
                content[-1]["input"] = json.loads(pieces)
    for block in (*content, *whole["content"]):
        block.pop("id", None)
    assert content == whole["content"]


def test_anthropic_streamed() -> None:
    sent = [json.loads(data) for data in _data(messages(app_of(), stream=True))]
    starts = [event["content_block"]["type"] for event in sent if event["type"] == "content_block_start"]
    assert starts == ["thinking", "text", "tool_use", "tool_use"]
    stops = [event["index"] for event in sent if event["type"] == "content_block_stop"]
    assert stops == [0, 1, 2, 3]
    deltas = [(event["index"], event["delta"]) for event in sent if event["type"] == "content_block_delta"]
    assert "".join(delta.get("thinking", "") for _, delta in deltas) == "Two cities."
    assert [delta["type"] for index, delta in deltas if index == 0][-1] == "signature_delta"
    for index, arguments in ((2, CALLS[0]), (3, CALLS[1])):
        assert json.loads("".join(d["partial_json"] for at, d in deltas if at == index)) == arguments
    assert sent[-2]["delta"]["stop_reason"] == "tool_use"


def test_anthropic_thinking_without_its_text() -> None:
    thinking, *_ = messages(app_of(), thinking={"type": "adaptive", "display": "omitted"}).json()["content"]
    assert thinking["thinking"] == ""


def test_anthropic_tools_of_its_own_servers_are_refused() -> None:
    response = messages(app_of(), tools=[{"type": "web_search_20250305", "name": "web_search"}])
    assert response.status_code == 400
    assert "tools[0]" in response.json()["error"]["message"]


def ollama(app: ASGIApp, **fields: Any) -> Any:
    return ask(app, "POST", "/api/chat", json={"model": "tiny", "messages": HI, "tools": TOOLS, **fields})


def test_ollama_whole() -> None:
    message = ollama(app_of(), stream=False).json()["message"]
    assert (message["thinking"], message["content"]) == ("Two cities.", "I look.")
    assert [call["function"]["arguments"] for call in message["tool_calls"]] == CALLS


def test_ollama_streamed() -> None:
    lines = [json.loads(line) for line in ollama(app_of()).text.splitlines()]
    own = [line["message"] for line in lines]
    assert "".join(message.get("thinking", "") for message in own) == "Two cities."
    assert "".join(message["content"] for message in own) == "I look."
    calls = [call for message in own for call in message.get("tool_calls", ())]
    assert [call["function"]["arguments"] for call in calls] == CALLS
    assert [call["function"]["index"] for call in calls] == [0, 1]
    assert len({call["id"] for call in calls}) == len(CALLS)
    assert lines[-1]["done_reason"] == "stop"


def test_ollama_drops_a_call_that_is_cut_off() -> None:
    reply = ollama(app_of(TRUNCATED, "length"), stream=False).json()
    assert reply["done_reason"] == "length"
    assert "tool_calls" not in reply["message"]


def test_ollama_generates_with_thinking() -> None:
    body = {"model": "tiny", "prompt": "hi", "stream": False}
    reply = ask(app_of("<think>\nwhy\n</think>\n\nanswer"), "POST", "/api/generate", json=body).json()
    assert (reply["thinking"], reply["response"]) == ("why", "answer")


RESPONSES_TOOLS = [{"type": "function", **FUNCTION}]
DEEP = "[" * 5000 + "]" * 5000
CUSTOM = {"type": "custom", "name": "weather"}
OF_DIALECTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": HI, "tools": TOOLS}),
    ("/v1/chat/completions", {"messages": HI, "tools": [{"type": "custom", "custom": {"name": "weather"}}]}),
    ("/v1/messages", {"messages": HI, "max_tokens": 9, "tools": [{"name": "weather", "input_schema": {}}]}),
    ("/api/chat", {"model": "tiny", "messages": HI, "tools": TOOLS}),
    ("/v1/responses", {"input": "hi", "tools": RESPONSES_TOOLS}),
    ("/v1/responses", {"input": "hi", "tools": [CUSTOM]}),
]


@pytest.mark.parametrize(("path", "body"), OF_DIALECTS)
@pytest.mark.parametrize("is_stream", [True, False])
def test_arguments_that_are_nested_deeply_are_no_bug(path: str, body: dict[str, Any], *, is_stream: bool) -> None:
    call = f'<tool_call>\n{{"name": "weather", "arguments": {{"city": {DEEP}}}}}\n</tool_call>'
    runtime = FakeRuntime(lambda submit: [call, {"text": "", "finish_reason": "stop"}])
    reply = ask(make_app(runtime), "POST", path, json={**body, "stream": is_stream})
    assert reply.status_code == 200
    assert "internal error" not in reply.text
    assert '"weather"' in reply.text


def respond(app: ASGIApp, **fields: Any) -> Any:
    return ask(app, "POST", "/v1/responses", json={"input": "hi", "tools": RESPONSES_TOOLS, **fields})


def test_responses_whole() -> None:
    reply = respond(app_of()).json()
    assert reply["status"] == "completed"
    reasoning, message, *calls = reply["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Two cities."}]
    assert message["content"][0]["text"] == "I look."
    assert [json.loads(call["arguments"]) for call in calls] == CALLS
    assert all(call["type"] == "function_call" and call["call_id"].startswith("call_") for call in calls)
    assert reply["tools"] == RESPONSES_TOOLS


@pytest.mark.parametrize("name", ["summary", "generate_summary"])
def test_clients_that_show_only_summaries_get_the_reasoning_as_one(name: str) -> None:
    reply = respond(app_of(), reasoning={"effort": "low", name: "auto"}).json()
    assert reply["reasoning"] == {"effort": "low", "summary": "auto"}
    assert reply["output"][0]["summary"] == [{"type": "summary_text", "text": "Two cities."}]
    assert reply["output"][0]["content"] == []
    assert respond(app_of(), reasoning={name: "none"}).json()["output"][0]["summary"] == []
    assert respond(app_of(), reasoning={name: "loud"}).status_code == 400


def test_a_stream_has_the_reasoning_as_a_summary() -> None:
    events = [json.loads(data) for data in _data(respond(app_of(), reasoning={"summary": "detailed"}, stream=True))]
    item_id = events[2]["item"]["id"]
    thought = [event for event in events if item_id in (event.get("item_id"), event.get("item", {}).get("id"))]
    part = {"type": "summary_text", "text": "Two cities."}
    added, opened, *deltas, said, closed, done = thought
    assert (added["item"]["summary"], added["item"]["content"]) == ([], [])
    assert (opened["type"], opened["part"]["text"]) == ("response.reasoning_summary_part.added", "")
    assert {delta["type"] for delta in deltas} == {"response.reasoning_summary_text.delta"}
    assert "".join(delta["delta"] for delta in deltas) == part["text"]
    assert (said["type"], said["text"]) == ("response.reasoning_summary_text.done", part["text"])
    assert (closed["type"], closed["part"]) == ("response.reasoning_summary_part.done", part)
    assert done["item"]["summary"] == events[-1]["response"]["output"][0]["summary"] == [part]
    assert {event["summary_index"] for event in (opened, *deltas, said, closed)} == {0}


@pytest.mark.parametrize("is_stream", [False, True])
def test_reasoning_is_given_as_one_text_to_those_who_keep_it(is_stream: bool) -> None:
    asked: dict[str, Any] = {"include": ["reasoning.encrypted_content"], "store": False, "stream": is_stream}
    reply = respond(app_of(), **asked)
    item = (json.loads(_data(reply)[-1])["response"] if is_stream else reply.json())["output"][0]
    runtime = FakeRuntime()
    kept = {"type": "reasoning", "id": item["id"], "summary": [], "encrypted_content": item["encrypted_content"]}
    items = [{"role": "user", "content": "hi"}, kept, {"role": "assistant", "content": "A"}]
    assert ask(make_app(runtime), "POST", "/v1/responses", json={"input": items}).status_code == 200
    assert runtime.rendered[0][0][1].reasoning == "Two cities."
    assert respond(app_of()).json()["output"][0]["encrypted_content"] is None


def test_responses_streamed() -> None:
    sent = [json.loads(data) for data in _data(respond(app_of(), stream=True))]
    assert [event["sequence_number"] for event in sent] == list(range(len(sent)))
    added = [event["item"]["type"] for event in sent if event["type"] == "response.output_item.added"]
    assert added == ["reasoning", "message", "function_call", "function_call"]
    done = [event["item"] for event in sent if event["type"] == "response.output_item.done"]
    assert done == sent[-1]["response"]["output"]
    for index, arguments in ((2, CALLS[0]), (3, CALLS[1])):
        pieces = [event for event in sent if event.get("output_index") == index and "arguments.delta" in event["type"]]
        assert json.loads("".join(piece["delta"] for piece in pieces)) == arguments


def test_a_stored_response_with_calls_is_gone_on_from() -> None:
    runtime = FakeRuntime(lambda submit: [ANSWER])
    app = make_app(runtime)
    first = ask(app, "POST", "/v1/responses", json={"input": "hi", "tools": RESPONSES_TOOLS}).json()
    call_id = first["output"][2]["call_id"]
    result = {"type": "function_call_output", "call_id": call_id, "output": "sunny"}
    body = {"input": [result], "previous_response_id": first["id"], "tools": RESPONSES_TOOLS}
    assert ask(app, "POST", "/v1/responses", json=body).status_code == 200
    history = runtime.rendered[-1][0]
    assert [message.role for message in history] == ["user", "assistant", "tool"]
    assert history[1].reasoning == "Two cities."
    assert history[1].tool_calls[0]["id"] == call_id
    assert history[2].tool_call_id == call_id


def test_calls_of_one_turn_are_one_message() -> None:
    runtime = FakeRuntime()
    calls = [{"type": "function_call", "call_id": f"c{n}", "name": "weather", "arguments": "{}"} for n in range(2)]
    results = [{"type": "function_call_output", "call_id": f"c{n}", "output": "sunny"} for n in range(2)]
    items = [{"role": "user", "content": "hi"}, *calls, *results]
    assert ask(make_app(runtime), "POST", "/v1/responses", json={"input": items}).status_code == 200
    assert [message.role for message in runtime.rendered[-1][0]] == ["user", "assistant", "tool", "tool"]


def _data(response: Any) -> list[str]:
    assert response.status_code == 200, response.text
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    return [line for line in lines if line != "[DONE]"]


def test_calls_and_constraints_are_counted() -> None:
    app = app_of()
    chat(app)
    chat(app, stream=True)
    chat(app, response_format={"type": "json_object"}, tool_choice="none")
    text = ask(app, "GET", "/metrics").text
    assert 'stoker_tool_calls_total{end="complete",format="hermes",model="tiny"} 4.0' in text
    assert 'stoker_constrained_requests_total{kind="json_object",model="tiny"} 1.0' in text
    cut = app_of(TRUNCATED, "length")
    chat(cut)
    assert 'stoker_tool_calls_total{end="cut_off",format="hermes",model="tiny"} 1.0' in ask(cut, "GET", "/metrics").text


def test_text_that_only_looks_like_a_call_is_counted() -> None:
    app = app_of('<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call> is no call.')
    chat(app)
    chat(app, stream=True)
    found = 'stoker_tool_calls_total{end="not_a_call",format="hermes",model="tiny"} 2.0'
    assert found in ask(app, "GET", "/metrics").text


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/api/chat"])
def test_a_constraint_holds_for_the_message_that_is_continued_as_a_whole(path: str) -> None:
    schema = {"type": "object"}
    fields: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
            "continue_final_message": True,
        },
        "/v1/messages": {"output_config": {"format": {"type": "json_schema", "schema": schema}}, "max_tokens": 9},
        "/api/chat": {"format": schema},
    }
    runtime = FakeRuntime(lambda submit: ["1}"])
    history = [*HI, {"role": "assistant", "content": '{"a": '}]
    ask(make_app(runtime), "POST", path, json={"model": "tiny", "messages": history, **fields[path]})
    outline = runtime.submits[0].outline
    assert outline is not None
    assert outline.begun == '{"a": '


def test_reasoning_that_has_begun_is_continued() -> None:
    runtime = FakeRuntime(lambda submit: [" cities.", "</think>\n\nZürich", " is one."])
    history = [*HI, {"role": "assistant", "reasoning_content": "There are two"}]
    body = {"messages": history, "continue_final_message": True}
    (choice,) = ask(make_app(runtime), "POST", "/v1/chat/completions", json=body).json()["choices"]
    assert str(runtime.submits[0].prompt).endswith("<think>There are two")
    assert choice["message"]["reasoning_content"] == " cities."
    assert choice["message"]["content"] == "Zürich is one."


@pytest.mark.parametrize(("words", "is_strict"), [({}, True), ({"strict": True}, True), ({"strict": False}, False)])
def test_a_schema_of_a_json_object_may_be_relaxed_if_the_client_says_so(words: dict[str, bool], is_strict: bool):
    grammar = response_grammar({"type": "json_object", "schema": {"type": "array", "uniqueItems": True}, **words})
    assert grammar is not None
    assert grammar.is_strict == is_strict
