"""Custom tools and thoughts with real clients, against answers that a model of the `qwen3` family would write."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from anthropic import Anthropic, beta_tool
from openai import OpenAI

from tests.e2e.scripts import serving_script
from tests.waiting import BOUND_S, wait_for

PATCH = '*** Begin Patch\n*** Add File: a.py\n+x = "é"\n*** End Patch'
GRAMMAR = r"""
start: begin hunk+ end
begin: "*** Begin Patch" LF
end: "*** End Patch" LF?
hunk: "*** Add File: " /(.+)/ LF ("+" /(.*)/ LF)+
%import common.LF
"""


def call(text: str, *, escapes: bool = False) -> str:
    arguments = json.dumps({"name": "apply_patch", "arguments": {"input": text}}, ensure_ascii=escapes)
    return f"<tool_call>\n{arguments}\n</tool_call>"


THOUGHT = " ".join(["The user wants to know the weather."] * 8)
WEATHER = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich", "days": [1, 2]}}\n</tool_call>'
PARAMETERS: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "array"}}}
SCRIPT: list[Any] = [
    {"when": "applied", "text": "It is done."},
    {"when": "21 degrees", "text": "It is warm."},
    {"when": "weather", "text": f"<think>\n{THOUGHT}\n</think>\n\n{WEATHER}"},
    {"when": "wrongly", "text": call("no patch")},
    {"when": "in escape sequences", "text": call(PATCH, escapes=True)},
    call(PATCH),
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving_script(tmp_path_factory.mktemp("custom"), SCRIPT) as url:
        yield url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[Any]:
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def in_chat(form: str = "lark", definition: str = GRAMMAR) -> Any:
    grammar = {"type": "grammar", "grammar": {"syntax": form, "definition": definition}}
    return {"type": "custom", "custom": {"name": "apply_patch", "description": "Edits files.", "format": grammar}}


def in_responses(form: str = "lark", definition: str = GRAMMAR) -> Any:
    grammar = {"type": "grammar", "syntax": form, "definition": definition}
    return {"type": "custom", "name": "apply_patch", "description": "Edits files.", "format": grammar}


def test_a_conversation_calls_a_custom_tool(client: Any):
    messages: list[Any] = [{"role": "user", "content": "Add a file."}]
    message = client.chat.completions.create(model="", messages=messages, tools=[in_chat()]).choices[0].message
    (called,) = message.tool_calls
    assert (called.type, called.custom.name, called.custom.input) == ("custom", "apply_patch", PATCH)
    result = {"role": "tool", "tool_call_id": called.id, "content": "applied"}
    messages += [message.model_dump(exclude_none=True), result]
    last = client.chat.completions.create(model="", messages=messages, tools=[in_chat()])
    assert last.choices[0].message.content == "It is done."


def test_a_model_may_write_escape_sequences(client: Any):
    assert "\\u00e9" in call(PATCH, escapes=True)
    messages: list[Any] = [{"role": "user", "content": "Add a file, in escape sequences."}]
    message = client.chat.completions.create(model="", messages=messages, tools=[in_chat()]).choices[0].message
    assert message.tool_calls[0].custom.input == PATCH


def test_a_response_calls_a_custom_tool(client: Any):
    with client.responses.stream(model="", input="Add a file.", tools=[in_responses()]) as stream:
        events = list(stream)
        response = stream.get_final_response()
    (called,) = [item for item in response.output if item.type == "custom_tool_call"]
    assert (called.name, called.input) == ("apply_patch", PATCH)
    assert "".join(e.delta for e in events if e.type == "response.custom_tool_call_input.delta") == PATCH
    assert [e.input for e in events if e.type == "response.custom_tool_call_input.done"] == [PATCH]
    result: Any = {"type": "custom_tool_call_output", "call_id": called.call_id, "output": "applied"}
    last = client.responses.create(model="", input=[result], previous_response_id=response.id, tools=[in_responses()])
    assert last.output_text == "It is done."


def test_the_text_obeys_the_grammar_whatever_the_model_wants(client: Any):
    message = {"role": "user", "content": "Patch wrongly."}
    tool = in_chat("regex", "^(?P<sign>[+-])[a-z]{1,9}$")
    choice: Any = {"type": "custom", "custom": {"name": "apply_patch"}}
    answer = client.chat.completions.create(model="", messages=[message], tools=[tool], tool_choice=choice)
    text = answer.choices[0].message.tool_calls[0].custom.input
    assert text[0] in "+-"
    assert text[1:].isalpha()


def test_a_grammar_that_is_wrong_is_refused(client: Any):
    with pytest.raises(openai.BadRequestError, match="line 1, column 8"):
        client.responses.create(model="", input="Add a file.", tools=[in_responses(definition="start: <x>")])


def test_thoughts_that_a_client_leaves_out_are_not_computed_again(client: Any):
    tools = [{"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}]
    messages: list[Any] = [{"role": "user", "content": "How is the weather?"}]
    first = client.chat.completions.create(model="", messages=messages, tools=tools)
    message = first.choices[0].message
    assert message.reasoning_content == THOUGHT
    (call,) = message.tool_calls
    called = {"id": call.id, "type": "function", "function": call.function.model_dump()}
    result = {"role": "tool", "tool_call_id": call.id, "content": "21 degrees"}
    messages += [{"role": "assistant", "tool_calls": [called]}, result]
    second = client.chat.completions.create(model="", messages=messages, tools=tools)
    assert second.choices[0].message.content == "It is warm."
    computed = first.usage.prompt_tokens + first.usage.completion_tokens
    assert second.usage.prompt_tokens_details.cached_tokens >= computed - 8


def test_thoughts_that_an_anthropic_client_hides_are_not_computed_again(url: str):
    tools: Any = [{"name": "weather", "input_schema": PARAMETERS}]
    messages: list[Any] = [{"role": "user", "content": "How is the weather today?"}]
    options: Any = {
        "model": "",
        "max_tokens": 900,
        "tools": tools,
        "thinking": {"type": "adaptive", "display": "omitted"},
    }
    with Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        first = client.messages.create(messages=messages, **options)
        thought, call = first.content
        assert (thought.type, thought.model_dump()["thinking"], call.type) == ("thinking", "", "tool_use")
        result = {"type": "tool_result", "tool_use_id": call.model_dump()["id"], "content": "21 degrees"}
        messages += [
            {"role": "assistant", "content": [block.model_dump() for block in first.content]},
            {"role": "user", "content": [result]},
        ]
        second = client.messages.create(messages=messages, **options)
    computed = first.usage.input_tokens + (first.usage.cache_read_input_tokens or 0) + first.usage.output_tokens
    assert (second.usage.cache_read_input_tokens or 0) >= computed - 8


def test_anthropic_s_tool_runner_goes_on_without_a_stored_thread(url: str):
    asked: list[tuple[str, list[int]]] = []

    @beta_tool
    def weather(city: str, days: list[int]) -> str:
        """Weather of a city."""
        asked.append((city, days))
        return "21 degrees"

    question: Any = {"role": "user", "content": "How is the weather tomorrow?"}
    with Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        runner = client.beta.messages.tool_runner(model="", max_tokens=900, messages=[question], tools=[weather])
        replies = [[block.type for block in reply.content] for reply in runner]
    assert asked == [("Zürich", [1, 2])]
    assert replies[0][-1] == "tool_use"
    assert replies[-1] == ["text"]


def post(url: str, path: str, body: dict[str, Any]) -> Any:
    reply = httpx.post(url + path, json=body, trust_env=False, timeout=120)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_thoughts_that_an_ollama_client_leaves_out_are_filled_in(url: str):
    """The second prompt is as long as one in which the client sends the thought."""
    tools = [{"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}]
    asked: dict[str, Any] = {"model": "scripted", "tools": tools, "stream": False}
    messages: list[Any] = [{"role": "user", "content": "How is the weather by the sea?"}]
    first = post(url, "/api/chat", {**asked, "messages": messages})["message"]
    assert first["thinking"] == THOUGHT
    result = {"role": "tool", "content": "21 degrees", "tool_name": "weather"}
    lengths = [
        post(url, "/api/chat", {**asked, "messages": [*messages, {**first, "thinking": thought}, result]})[
            "prompt_eval_count"
        ]
        for thought in (THOUGHT, None)
    ]
    assert lengths[0] == lengths[1] > len(THOUGHT)


def test_thoughts_that_are_filled_in_count(url: str, client: Any):
    tools = [{"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}]
    messages: list[Any] = [{"role": "user", "content": "How is the weather up there?"}]
    message = client.chat.completions.create(model="", messages=messages, tools=tools).choices[0].message
    (call,) = message.tool_calls
    arguments = call.function.arguments
    turn = {
        "role": "assistant",
        "tool_calls": [{"id": call.id, "type": "function", "function": {"name": "weather", "arguments": arguments}}],
    }
    result = {"role": "tool", "tool_call_id": call.id, "content": "21 degrees"}
    short, told = [*messages, turn, result], [*messages, {**turn, "reasoning_content": THOUGHT}, result]
    path = "/v1/chat/completions/input_tokens"
    count = post(url, path, {"messages": short, "tools": tools})["input_tokens"]
    assert count == post(url, path, {"messages": told, "tools": tools})["input_tokens"]
    items = [
        *messages,
        {"type": "function_call", "call_id": call.id, "name": "weather", "arguments": arguments},
        {"type": "function_call_output", "call_id": call.id, "output": "21 degrees"},
    ]
    flat = [{"type": "function", "name": "weather", "parameters": PARAMETERS}]
    assert post(url, "/v1/responses/input_tokens", {"input": items, "tools": flat})["input_tokens"] == count
    use = {"type": "tool_use", "id": call.id, "name": "weather", "input": json.loads(arguments)}
    thought = {"type": "thinking", "thinking": THOUGHT, "signature": ""}
    answer = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "21 degrees"}]}
    offered = [{"name": "weather", "input_schema": PARAMETERS}]
    short, told = (
        post(
            url,
            "/v1/messages/count_tokens",
            {"messages": [*messages, {"role": "assistant", "content": blocks}, answer], "tools": offered},
        )["input_tokens"]
        for blocks in ([use], [thought, use])
    )
    assert short == told > len(THOUGHT)


def test_turning_thoughts_on_and_off_computes_only_the_end_of_the_prompt_again(client: Any):
    messages: list[Any] = [{"role": "user", "content": "Tell me about the long and winding road to the sea."}]
    usages = [
        client.chat.completions.create(
            model="",
            messages=messages,
            max_tokens=1,
            extra_body={"chat_template_kwargs": {"enable_thinking": is_on}},
        ).usage
        for is_on in (True, False, True)
    ]
    for usage in usages[1:]:
        assert usage.prompt_tokens_details.cached_tokens >= usages[0].prompt_tokens - 8


def test_the_metrics_tell_the_work_of_grammars(client: Any, url: str):
    schema = {"type": "object", "properties": {"an_answer": {"enum": [1, 2]}}, "required": ["an_answer"]}
    form: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    before = metrics_of(url)
    for _ in range(2):
        client.chat.completions.create(model="", messages=[{"role": "user", "content": "?"}], response_format=form)
    after = wait_for(
        lambda: metrics_of(url), lambda found: found["grammar_cache_hits_total"] > before["grammar_cache_hits_total"]
    )
    assert after["grammar_mask_seconds_total"] > before["grammar_mask_seconds_total"]


GRAMMAR_METRICS = (
    "grammar_compile_seconds_count",
    "grammar_cache_hits_total",
    "constrained_tokens_total",
    "grammar_mask_seconds_total",
)


def metrics_of(url: str) -> dict[str, float]:
    lines = httpx.get(f"{url}/metrics", trust_env=False, timeout=BOUND_S).text.splitlines()
    values = {
        line.partition("{")[0].removeprefix("stoker_"): float(line.split()[-1]) for line in lines if line[:1] != "#"
    }
    return {name: values[name] for name in GRAMMAR_METRICS}
