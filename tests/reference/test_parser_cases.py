"""llama.cpp's own cases of parsers: nearly all answers are read as the same content, reasoning and calls."""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import cache
from typing import Any

import msgspec
import pytest

from stoker.chat.answers import ToolCalls, reasoning_of, text_of
from stoker.chat.planning import Conversation, Thinking, planned
from stoker.chat.tools import tools_of
from stoker.engine.card_template import CardTemplate
from stoker.engine.cards import ModelCard
from stoker.errors import StokerError
from stoker.text.chat_formats.events import Content
from stoker.text.messages import message_from_dict
from tests.llama_cpp_sources import parser_tests, templates
from tests.reference.parser_cases import Case, Message, parser_cases
from tests.unit.server.fake_runtime import CARD

pytestmark = pytest.mark.slow


_END = re.compile(r"(?:<\|role_end\|>|<\|eot\|>|<\|END_OF_TURN_TOKEN\|>)$")
"""Tokens that end an answer: they add no text to it."""


OTHERS = {
    "MiniMax-M3": (17, "no row reads arguments that are nested tags; its model is prompted to write JSON"),
    "muse-glimmer": (3, "the recipient of a call stays content, and calls in a message to the user are calls"),
    "openai-gpt-oss-120b": (3, "messages to tools that were not offered are content; `<|end|>` is left out of content"),
    "Cohere2MoE": (2, "the marker of the prompt is no part of the answer; a call without its arguments is none yet"),
    "Kimi-K2-Instruct": (2, "its template has no markers of reasoning"),
    "CohereForAI-c4ai-command-r-plus-tool_use": (2, "its template fails with these tools"),
    "Apriel-1.6-15b-Thinker-fixed": (2, "`Here are my reasoning steps:` is a marker and no reasoning"),
    "LFM2-8B-A1B": (1, "an unfinished text argument begins with its quotation mark"),
    "Qwen3.5-4B": (1, "the marker of the prompt is no part of the answer"),
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": (1, "the marker of the prompt is no part of the answer"),
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": (1, "a call without its arguments is none yet"),
    "google-gemma-4-31B-it": (1, "half of a marker is content"),
    "Reka-Edge": (1, "unfinished arguments end as the model has written them"),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": (1, "its template writes other calls than `<tool_call>`"),
}
"""Answers that are read otherwise: how many of each template, and why."""


class Model:
    """A model that has nothing but a chat template."""

    def __init__(self, source: str) -> None:
        self.card: ModelCard = msgspec.structs.replace(CARD, chat_template=source, bos_token="<s>", eos_token="</s>")
        self._template = CardTemplate(self.card)
        self.chat_format = self._template.chat_format

    def render_chat(self, messages: Any, **options: Any) -> str:
        return self._template.render(messages, **options)


@cache
def model(name: str) -> Model:
    return Model(templates()[name])


def message(given: Message, role: str) -> Any:
    return message_from_dict({"role": role, "content": given.content, "reasoning": given.reasoning or None}, "message")


def read(case: Case) -> Message:
    """The answer as a client gets it; what it continues stands before it."""
    options = case.options
    tools = [
        {"type": "function", "function": {"name": name, "description": about, "parameters": json.loads(schema or "{}")}}
        for name, about, schema in options.get("tools", ())
    ]
    given: list[Message] = options.get("messages") or [Message("Hey there!")]
    format_name = options.get("reasoning_format", "COMMON_REASONING_FORMAT_NONE")
    is_continued = "continue_final_message" in options
    asked = Conversation(
        messages=[message(each, "assistant" if index else "user") for index, each in enumerate(given)],
        tools=tools_of(tools, None, parallel=True),
        thinking=Thinking(stays_in_content=format_name.endswith("NONE")),
        template_kwargs={"enable_thinking": options.get("enable_thinking", True)},
        add_generation_prompt=not is_continued,
        continue_final_message=is_continued,
    )
    plan = planned(asked, model(case.template))
    before = given[-1] if is_continued else Message()
    if plan.reader is None:
        return Message(before.content + case.text)
    reader = plan.reader()
    text = _END.sub("", case.text)
    parts = [*reader.push(reader.marks.encode(text)), *reader.flush()]
    calls = ToolCalls("call_", "").push_all(parts).calls
    has_content = any(isinstance(part, Content) for part in parts)
    return Message(
        before.content + text_of(parts) if has_content or before.content else "",
        (before.reasoning if model(case.template).chat_format.can_think else "") + reasoning_of(parts),
        [(call.name, call.arguments) for call in calls],
    )


def plain(given: Message) -> tuple[str, str, list[tuple[str, Any]]]:
    return given.content.strip(), given.reasoning.strip(), [(name, loaded(text)) for name, text in given.calls]


def loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def test_answers_are_read_as_llama_cpp_reads_them() -> None:
    cases, num_unread = parser_cases(parser_tests())
    assert len(cases) > 400
    assert num_unread < 20
    others: Counter[str] = Counter()
    shown: list[str] = []
    for case in cases:
        try:
            found = read(case)
        except StokerError as error:
            others[case.template] += 1
            shown.append(f"{case.template}, line {case.line}: {error}")
            continue
        if plain(found) != plain(case.expected):
            others[case.template] += 1
            shown.append(f"{case.template}, line {case.line}: {case.text!r}\n  {found}\n  {case.expected}")
    assert others == Counter({name: count for name, (count, _) in OTHERS.items()}), "\n".join(shown)
    assert others.total() <= len(cases) // 10
