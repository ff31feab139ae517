"""Custom tools: they take a text, which may follow a grammar, in chat completions and responses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from stoker.engine.card_template import CardTemplate
from stoker.text.messages import Message
from tests.unit.server.fake_runtime import FakeRuntime, Step, ask, make_app

QUESTION = "Run something."
DATE: dict[str, Any] = {"type": "grammar", "syntax": "regex", "definition": r"^(?P<year>\d{4})-\d\d$"}
LARK: dict[str, Any] = {"type": "grammar", "syntax": "lark", "definition": 'start: "run" ARG*\nARG: " " /[a-z]+/'}
TEXT = 'print("Zürich 🙂")\n\\n</tool_call>'
CALL = "<tool_call>\n" + json.dumps({"name": "code", "arguments": {"input": TEXT}}) + "\n</tool_call>"
OTHER = '<tool_call>\n{"name": "clock", "arguments": {"zone": "CET"}}\n</tool_call>'
FUNCTION: dict[str, Any] = {
    "name": "clock",
    "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}},
}


def custom(form: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"name": "code", "description": "Runs it.", **({} if form is None else {"format": form})}


def nested(form: dict[str, Any] | None) -> dict[str, Any] | None:
    """A format as chat completions have it."""
    if form is None or form["type"] == "text":
        return form
    return {"type": "grammar", "grammar": {name: form[name] for name in ("syntax", "definition")}}


class Templated(FakeRuntime):
    """With a chat template that writes tools, calls and results."""

    def render_chat(self, messages: Sequence[Message], **options: Any) -> str:
        return CardTemplate(self.model_card).render(messages, **options)


def runtime_of(*texts: str) -> FakeRuntime:
    steps: list[Step] = [text[at : at + 3] for text in texts for at in range(0, len(text), 3)]
    runtime = Templated(lambda submit: [*steps, {"text": "", "finish_reason": "stop"}])
    template = Path("tests/golden/chat_templates/qwen3.jinja").read_text()
    runtime.model_card = replace(runtime.model_card, can_constrain_calls=True, chat_template=template)
    return runtime


def chat(runtime: FakeRuntime, form: dict[str, Any] | None = None, **fields: Any) -> Any:
    body = {
        "messages": [{"role": "user", "content": QUESTION}],
        "tools": [{"type": "custom", "custom": custom(nested(form))}, {"type": "function", "function": FUNCTION}],
        **fields,
    }
    return ask(make_app(runtime), "POST", "/v1/chat/completions", json=body)


def respond(runtime: FakeRuntime, form: dict[str, Any] | None = None, **fields: Any) -> Any:
    tools = [{"type": "custom", **custom(form)}, {"type": "function", **FUNCTION}]
    return ask(make_app(runtime), "POST", "/v1/responses", json={"input": QUESTION, "tools": tools, **fields})


def test_a_call_has_the_text() -> None:
    (choice,) = chat(runtime_of(CALL, OTHER)).json()["choices"]
    first, second = choice["message"]["tool_calls"]
    assert (first["type"], first["custom"]) == ("custom", {"name": "code", "input": TEXT})
    assert "function" not in first
    assert (second["type"], second["function"]["name"]) == ("function", "clock")
    assert choice["finish_reason"] == "tool_calls"


def test_the_text_is_streamed_as_it_is_written() -> None:
    response = chat(runtime_of(CALL), stream=True)
    chunks = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    pieces = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", ())]
    assert pieces[0] | {"id": ""} == {"index": 0, "id": "", "type": "custom", "custom": {"name": "code", "input": ""}}
    assert "".join(piece["custom"]["input"] for piece in pieces) == TEXT
    assert len(pieces) > 5


def test_a_response_has_an_item_and_events_of_its_own() -> None:
    whole = respond(runtime_of(CALL)).json()
    (item,) = whole["output"]
    assert (item["type"], item["name"], item["input"], item["status"]) == (
        "custom_tool_call",
        "code",
        TEXT,
        "completed",
    )
    assert item["id"].startswith("ctc_")
    response = respond(runtime_of(CALL), stream=True)
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert list(dict.fromkeys(kinds)) == [
        "created",
        "in_progress",
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
        "completed",
    ]
    assert "".join(event["delta"] for event in events if event["type"].endswith("input.delta")) == TEXT
    assert events[-3]["input"] == TEXT
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_a_stored_response_goes_on_with_the_result() -> None:
    runtime = runtime_of(CALL)
    app = make_app(runtime)
    tools = [{"type": "custom", **custom()}]
    first = ask(app, "POST", "/v1/responses", json={"input": QUESTION, "tools": tools}).json()
    result = {"type": "custom_tool_call_output", "call_id": first["output"][0]["call_id"], "output": "done-with-it"}
    body = {"input": [result], "tools": tools, "previous_response_id": first["id"]}
    second = ask(app, "POST", "/v1/responses", json=body).json()
    prompt = str(runtime.submits[1].prompt)
    assert json.dumps(TEXT, ensure_ascii=False) in prompt
    assert "done-with-it" in prompt
    items = ask(app, "GET", f"/v1/responses/{second['id']}/input_items?order=asc").json()["data"]
    assert [item["type"] for item in items] == ["message", "custom_tool_call", "custom_tool_call_output"]
    assert items[1]["input"] == TEXT


def test_a_call_of_the_history_is_written_like_any_other() -> None:
    history: list[dict[str, Any]] = [
        {"role": "user", "content": QUESTION},
        {
            "role": "assistant",
            "tool_calls": [{"id": "call_1", "type": "custom", "custom": {"name": "code", "input": TEXT}}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "done-with-it"},
    ]
    runtime = runtime_of("Yes.")
    assert chat(runtime, messages=history).status_code == 200
    assert json.dumps(TEXT, ensure_ascii=False) in str(runtime.submits[0].prompt)
    call: dict[str, Any] = {"type": "custom_tool_call", "call_id": "call_1", "name": "code", "input": TEXT}
    again = runtime_of("Yes.")
    items = [
        {"role": "user", "content": QUESTION},
        call,
        {**call, "type": "custom_tool_call_output", "output": "done-with-it"},
    ]
    assert respond(again, input=items).status_code == 200
    assert again.submits[0].prompt == runtime.submits[0].prompt


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        (None, None),
        ({"type": "text"}, None),
        (DATE, r"^(?:(?P<year>\d{4})-\d\d)$"),
        (LARK, r"^(?:run(?:\x20(?:[a-z]+)){0,})$"),
    ],
)
def test_the_text_follows_its_format(form: dict[str, Any] | None, pattern: str | None) -> None:
    prompts: list[str] = []
    for answer in (chat, respond):
        runtime = runtime_of("Yes.")
        assert answer(runtime, form).status_code == 200
        outline = runtime.submits[0].outline
        assert outline is not None
        assert outline.grammar is not None
        tool = json.loads(outline.grammar.text)["tools"][0]
        schema = json.loads(tool["schema"])
        assert tool["is_strict"]
        assert schema["properties"]["input"].get("pattern") == pattern
        assert schema["required"] == ["input"]
        prompts.append(str(runtime.submits[0].prompt))
    assert prompts[0] == prompts[1]
    if form and form["type"] == "grammar":
        assert json.dumps(form["definition"], ensure_ascii=False)[1:-1] in prompts[0], "the model reads the grammar"


@pytest.mark.parametrize(
    "choice",
    [{"type": "custom", "custom": {"name": "code"}}, {"type": "custom", "name": "code"}, "code"],
)
def test_a_custom_tool_is_chosen(choice: Any) -> None:
    runtime = runtime_of(CALL)
    assert chat(runtime, tool_choice=choice).status_code == 200
    outline = runtime.submits[0].outline
    assert outline is not None
    assert outline.grammar is not None
    plan = json.loads(outline.grammar.text)
    assert [tool["name"] for tool in plan["tools"]] == ["code"]
    assert (plan["content"], plan["most"]) == (None, 1)


@pytest.mark.parametrize(
    ("form", "parameter"),
    [
        ({"type": "picture"}, "tools[0].format.type"),
        ("text", "tools[0].format"),
        ({"type": "grammar", "syntax": "ebnf", "definition": "x"}, "tools[0].format.syntax"),
        ({"type": "grammar", "syntax": ["regex"], "definition": "x"}, "tools[0].format.syntax"),
        ({"type": "grammar", "syntax": "lark"}, "tools[0].format.definition"),
        ({**LARK, "definition": "start: nothing"}, "tools[0].format.definition"),
        ({"type": "grammar", "grammar": 3}, "tools[0].format.grammar"),
    ],
)
def test_a_format_that_is_malformed_is_refused(form: Any, parameter: str) -> None:
    error = respond(runtime_of("Yes."), form)
    assert error.status_code == 400
    assert error.json()["error"]["param"] == parameter


def test_a_grammar_that_cannot_be_enforced_is_refused() -> None:
    runtime = runtime_of("Yes.")
    runtime.model_card = replace(runtime.model_card, can_constrain_calls=False)
    assert chat(runtime, LARK).json()["error"]["param"] == "tools"
    assert chat(runtime, LARK, tool_choice="none").status_code == 200
    assert chat(runtime).status_code == 200
    assert chat(runtime, LARK, tool_choice="required").status_code == 200
    outline = runtime.submits[-1].outline
    assert outline is not None
    assert outline.grammar is not None
    (code, _) = json.loads(outline.grammar.text)["properties"]["tool_calls"]["items"]["anyOf"]
    assert "pattern" in code["properties"]["arguments"]["properties"]["input"]
