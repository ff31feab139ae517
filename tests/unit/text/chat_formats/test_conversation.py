"""Conversations with tools in the form that a template can write."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.text.chat_formats.conversation import plainer, prepared, written
from stoker.text.chat_formats.probe import ChatFormat, find_format
from stoker.text.chat_formats.reader import read_whole
from stoker.text.chat_formats.shapes import BareCalls, TaggedCalls
from stoker.text.chat_formats.table import FORMATS, GENERIC, Format
from stoker.text.chat_template import CHATML, ChatTemplate
from stoker.text.messages import Json, Message
from tests.unit.text.chat_formats.test_readers import calls_of

TOOLS: list[dict[str, Json]] = [{"type": "function", "function": {"name": "f", "description": "Does it."}}]
CALL: dict[str, Json] = {"id": "call-1", "type": "function", "function": {"name": "f", "arguments": '{"k": "é"}'}}
HISTORY = [
    Message(role="user", content="go"),
    Message(role="assistant", content="Well", tool_calls=(CALL,)),
    Message(role="tool", content="42", tool_call_id="call-1"),
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
ROWS = [
    row for row in (*FORMATS, GENERIC) if not isinstance(row.calls, TaggedCalls | BareCalls) and row.name != "apertus"
]


@pytest.fixture(scope="module")
def templates() -> dict[str, ChatTemplate]:
    folder = Path("tests/golden/chat_templates")
    return {name: ChatTemplate((folder / f"{name}.jinja").read_text()) for name in ("qwen3", "gemma3", "mistral")}


def format_of(source: str) -> ChatFormat:
    return find_format(ChatTemplate(source))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@given(st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), VALUES, max_size=3))
def test_written_calls_are_read_back(row: Format, arguments: dict[str, Any]) -> None:
    events = read_whole(written([("f", arguments)], row), row, {"f": {}})
    calls = [(name, json.loads(text)) for name, text in calls_of(events)]
    assert calls == [("f", arguments)]


def test_a_template_that_knows_tools_is_given_them(templates: dict[str, ChatTemplate]) -> None:
    messages, tools = prepared(HISTORY, TOOLS, find_format(templates["qwen3"]))
    assert tools == TOOLS
    assert messages[1].tool_calls == (CALL,)
    assert messages[2].name == "f"


def test_what_a_template_does_not_write_becomes_text(templates: dict[str, ChatTemplate]) -> None:
    chat_format = find_format(templates["gemma3"])
    messages, tools = prepared(HISTORY, TOOLS, chat_format)
    assert chat_format.row.name == "generic"
    assert tools is None
    assert [message.role for message in messages] == ["system", "user", "assistant", "user"]
    assert '"name": "f"' in messages[0].text
    assert "tool_calls" in messages[0].text
    assert messages[2].text == 'Well\n{"tool_calls": [{"name": "f", "arguments": {"k": "é"}}]}'
    assert messages[3].text == "Result of f:\n42"


def test_the_system_prompt_that_is_there_is_kept() -> None:
    messages, _ = prepared([Message(role="system", content="Be brief."), *HISTORY], TOOLS, format_of(CHATML))
    assert messages[0].text.startswith("Be brief.\n\nYou can call functions.")
    assert sum(message.role == "system" for message in messages) == 1


def test_without_tools_there_is_no_instruction() -> None:
    messages, tools = prepared([Message(role="user", content="hi")], [], format_of(CHATML))
    assert (messages, tools) == ([Message(role="user", content="hi")], None)


def test_ids_get_the_form_that_the_model_knows(templates: dict[str, ChatTemplate]) -> None:

    chat_format = find_format(templates["qwen3"])
    for form, pattern in (("alnum9", r"[0-9a-z]{9}"), ("kimi", r"functions\.f:0")):
        adapted = replace(chat_format, row=replace(chat_format.row, id_form=form))
        messages, _ = prepared(HISTORY, TOOLS, adapted)
        assert messages[2].tool_call_id == messages[1].tool_calls[0]["id"]
        assert isinstance(messages[2].tool_call_id, str)

        assert re.fullmatch(pattern, messages[2].tool_call_id)


XML = """\
{% for m in messages %}<|{{ m.role }}|>
{{ m.content }}{% for call in m.tool_calls %}<tool_call>
<function={{ call.function.name }}>
{% for key, value in call.function.arguments | items %}<parameter={{ key }}>
{{ value if value is string else value | tojson }}
</parameter>
{% endfor %}</function>
</tool_call>{% endfor %}<|end|>
{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% endif %}"""
VALUES_OF_JSON = '{"name": "f", "KEY": {"city": "Zürich \\"x\\"", "days": [1, 2]}}'


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("qwen3", f"<tool_call>\n{VALUES_OF_JSON.replace('KEY', 'arguments')}\n</tool_call>"),
        ("llama3", VALUES_OF_JSON.replace("KEY", "parameters")),
        ("smollm2", f'{{"tool_calls": [{VALUES_OF_JSON.replace("KEY", "arguments")}]}}'),
        (
            XML,
            '<tool_call>\n<function=f>\n<parameter=city>\nZürich "x"\n</parameter>\n'
            "<parameter=days>\n[1, 2]\n</parameter>\n</function>\n</tool_call>",
        ),
    ],
    ids=["hermes", "llama3", "generic", "qwen_xml"],
)
def test_the_next_prompt_begins_with_the_answer_as_it_was_written(name: str, answer: str) -> None:
    """So that what was computed for the call is found in the cache."""
    source = name if "\n" in name else (Path("tests/golden/chat_templates") / f"{name}.jinja").read_text()
    template = ChatTemplate(source)
    found = find_format(template)

    def prompt(history: list[Message]) -> str:
        messages, tools = prepared(history, TOOLS, found)
        return template.render(messages, tools=tools)

    asked = prompt(HISTORY[:1])
    ((_, arguments),) = calls_of(read_whole(answer, found.row, {"f": {}}, opening=asked))
    call: dict[str, Json] = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    result = Message(role="tool", content="42", tool_call_id="1")
    told = prompt([HISTORY[0], Message(role="assistant", tool_calls=(call,)), result])
    assert told.startswith(asked + answer)


def test_arguments_that_are_no_json_stay_text() -> None:
    broken: dict[str, Json] = {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{k: 1"}}
    messages, _ = prepared([HISTORY[0], Message(role="assistant", tool_calls=(broken,))], TOOLS, format_of(CHATML))
    assert '"arguments": "{k: 1"' in messages[-1].text


def test_a_result_of_an_unknown_call_has_a_name_for_templates_that_want_one() -> None:
    result = Message(role="tool", content="42", tool_call_id="lost")
    assert plainer([result], None, takes_system=True) == ([replace(result, name="unknown")], None)
