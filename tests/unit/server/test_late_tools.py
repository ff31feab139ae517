"""Anthropic's tools that come in the middle of a conversation, and those that the API defines, as agents use them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.server.fake_runtime import FakeRuntime, ask, make_app

CALL = '<tool_call>\n{"name": "clock", "arguments": {"zone": "CET"}}\n</tool_call>'
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"zone": {"type": "string"}}}
SEARCH = {"name": "search", "input_schema": {"type": "object"}}
CLOCK = {"name": "clock", "description": "Tells the time.", "input_schema": SCHEMA}
WEB = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
DEFERRED = {**CLOCK, "defer_loading": True}
USE = {"type": "tool_use", "id": "t1", "name": "search", "input": {}}
FOUND = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "tool_reference", "tool_name": "clock"}]}
HI = {"role": "user", "content": "hi"}


def history(*blocks: Any) -> list[dict[str, Any]]:
    return [HI, {"role": "assistant", "content": [USE]}, {"role": "user", "content": [FOUND]}, *blocks]


def changed(kind: str, **tool: Any) -> dict[str, Any]:
    return {"role": "system", "content": [{"type": kind, "tool": tool}]}


def answer(messages: list[dict[str, Any]], tools: list[dict[str, Any]], **fields: Any) -> tuple[FakeRuntime, Any]:
    runtime = FakeRuntime(lambda submit: [CALL, {"text": "", "finish_reason": "stop"}])
    runtime.model_card = replace(runtime.model_card, can_constrain_calls=True)
    body = {"max_tokens": 99, "messages": messages, "tools": tools, **fields}
    return runtime, ask(make_app(runtime), "POST", "/v1/messages", json=body)


def listed(runtime: FakeRuntime) -> list[str]:
    """Names of the tools that the chat template lists."""
    return [tool["function"]["name"] for tool in runtime.rendered[-1][1].get("tools", ())]


def offered(runtime: FakeRuntime) -> list[str]:
    """Names of the tools that the answer may call."""
    grammar = runtime.submits[-1].outline.grammar  # pyright: ignore[reportOptionalMemberAccess]
    return [tool["name"] for tool in json.loads(grammar.text)["tools"]] if grammar is not None else []


def called(response: Any) -> list[str]:
    assert response.status_code == 200, response.text
    return [block["name"] for block in response.json()["content"] if block["type"] == "tool_use"]


def test_a_deferred_tool_is_not_there_before_it_is_found():
    runtime, response = answer([HI], [SEARCH, DEFERRED])
    assert (listed(runtime), offered(runtime), called(response)) == (["search"], ["search"], [])


def test_a_tool_that_was_found_is_described_by_the_result_and_can_be_called():
    runtime, response = answer(history(), [DEFERRED, SEARCH])
    assert (listed(runtime), offered(runtime)) == (["search"], ["search", "clock"])
    assert called(response) == ["clock"]
    text = runtime.rendered[-1][0][-1].text
    definition = json.loads(text.partition("<function>")[2].partition("</function>")[0])
    assert definition == {"description": "Tells the time.", "name": "clock", "parameters": SCHEMA}


def test_the_beginning_of_the_prompt_stays_as_it_was():
    before, _ = answer([HI], [SEARCH, DEFERRED])
    after, _ = answer(history(), [SEARCH, DEFERRED])
    assert before.rendered[-1][1] == after.rendered[-1][1]
    assert before.rendered[-1][0] == after.rendered[-1][0][:1]


def test_a_reference_to_a_tool_that_is_no_longer_offered_does_not_end_the_conversation():
    runtime, response = answer(history(), [SEARCH])
    assert called(response) == []
    assert runtime.rendered[-1][0][-1].text == "The tool clock is not available."


@pytest.mark.parametrize(
    "tool", [{"type": "tool_reference", "name": "clock"}, {"type": "tool_definition", "definition": CLOCK}]
)
def test_a_system_message_brings_a_tool_and_takes_it_away(tool: dict[str, Any]):
    added = [HI, changed("tool_addition", **tool)]
    runtime, response = answer(added, [SEARCH, DEFERRED])
    assert (listed(runtime), called(response)) == (["search"], ["clock"])
    removed = [*added, changed("tool_removal", type="tool_reference", name="clock")]
    runtime, response = answer(removed, [SEARCH, DEFERRED])
    assert called(response) == []
    runtime, response = answer([*removed, changed("tool_addition", **tool)], [SEARCH, DEFERRED])
    assert called(response) == ["clock"]


def test_a_tool_of_the_list_that_is_taken_away_stays_in_the_list():
    gone = [HI, changed("tool_removal", type="tool_reference", name="clock")]
    runtime, response = answer(gone, [SEARCH, CLOCK])
    assert (listed(runtime), called(response)) == (["search", "clock"], [])


@pytest.mark.parametrize("tool", [None, {}, {"type": "tool_reference"}, {"type": "tool_definition", "definition": {}}])
def test_a_change_that_is_malformed_is_refused_by_its_place(tool: Any):
    content = [{"type": "tool_addition", "tool": tool}]
    _, response = answer([HI, {"role": "system", "content": content}], [SEARCH])
    assert response.status_code == 400
    assert "messages[1].content[0].tool" in response.json()["error"]["message"]


def test_a_definition_that_is_malformed_is_refused_by_its_place():
    definition = {"name": "clock", "type": "web_search_20250305"}
    _, response = answer([HI, changed("tool_addition", type="tool_definition", definition=definition)], [SEARCH])
    assert response.status_code == 400
    assert "messages[1].content[0].tool.definition" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("kind", "name", "parameter"),
    [
        ("bash_20250124", "bash", "command"),
        ("text_editor_20250728", "str_replace_based_edit_tool", "view_range"),
        ("memory_20250818", "memory", "old_path"),
    ],
)
def test_a_tool_that_a_client_runs_is_offered_with_its_definition(kind: str, name: str, parameter: str):
    runtime, response = answer([HI], [{"type": kind, "name": name}])
    assert response.status_code == 200
    (tool,) = runtime.rendered[-1][1]["tools"]
    assert tool["function"]["name"] == name
    assert parameter in tool["function"]["parameters"]["properties"]


@pytest.mark.parametrize("tools", [[WEB], [WEB, WEB], [{"type": "computer_20250124", "name": "c"}, SEARCH]])
def test_a_tool_that_runs_on_a_server_is_refused_alone_and_an_unknown_one_always(tools: list[Any]):
    _, response = answer([HI], tools)
    assert response.status_code == 400
    assert f"`tools[0]`: tools of type '{tools[0]['type']}' are not" in response.json()["error"]["message"]


@pytest.mark.parametrize("kind", ["web_search_20250305", "web_fetch_20260318", "code_execution_20250522", "advisor_1"])
def test_a_tool_that_anthropic_runs_is_left_out_beside_the_client_s_own(kind: str):
    runtime, response = answer([HI], [{"type": kind, "name": "hosted"}, CLOCK])
    assert (listed(runtime), called(response)) == (["clock"], ["clock"])
    assert response.headers["x-stoker-ignored"] == "tools[0]"
    body = {"messages": [HI], "tools": [{"type": kind, "name": "hosted"}, CLOCK]}
    assert ask(make_app(runtime), "POST", "/v1/messages/count_tokens", json=body).status_code == 200


def test_a_tool_that_anthropic_runs_cannot_be_required():
    _, response = answer([HI], [WEB, CLOCK], tool_choice={"type": "tool", "name": "web_search"})
    assert response.status_code == 400


def test_no_tool_is_deferred_if_only_anthropic_could_search_for_it():
    search = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
    runtime, response = answer([HI], [search, DEFERRED])
    assert (listed(runtime), called(response)) == (["clock"], ["clock"])


def test_the_path_of_a_tool_counts_those_that_are_left_out():
    _, response = answer([HI], [WEB, {"type": "computer_20250124", "name": "computer"}])
    assert "tools[1]" in response.json()["error"]["message"]


def test_what_claude_code_asks_for_beside_its_conversation_has_no_effect():
    edits = [{"type": "clear_thinking_20251015", "keep": "all"}]
    _, response = answer([HI], [CLOCK], context_management={"edits": edits}, thinking={"type": "adaptive"})
    assert response.headers["x-stoker-ignored"] == "context_management"
    assert called(response) == ["clock"]


@pytest.mark.parametrize("takes_images", [False, True])
def test_an_image_that_a_tool_returns_does_not_end_the_conversation(takes_images: bool):
    source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    parts = [{"type": "text", "text": "Here:"}, {"type": "image", "source": source}]
    result = {"type": "tool_result", "tool_use_id": "t1", "content": parts}
    runtime = FakeRuntime()
    if takes_images:
        runtime.model_card = replace(runtime.model_card, media=("image",))
    messages = [HI, {"role": "assistant", "content": [USE]}, {"role": "user", "content": [result]}]
    body = {"max_tokens": 9, "messages": messages}
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        assert ask(make_app(runtime), "POST", path, json=body).status_code == 200
        text = runtime.rendered[-1][0][-1].text
        assert ("left out" in text) is not takes_images
    response = ask(
        make_app(FakeRuntime()), "POST", "/v1/messages", json={**body, "messages": [{**HI, "content": parts}]}
    )
    assert response.status_code == 400, "the client itself shows an image"
