"""The chat templates that come with llama.cpp: each works with tools, and after a call the prompt begins with what was
computed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
import pytest

from stoker.chat.answers import ToolCalls, text_of
from stoker.chat.thoughts import ThoughtMemory, Thoughts
from stoker.engine.card_template import CardTemplate
from stoker.errors import StokerError
from stoker.text.chat_formats.events import CallEnd
from stoker.text.chat_formats.reader import Reader
from stoker.text.messages import Json, messages_from_dicts
from tests.llama_cpp_sources import templates
from tests.unit.server.fake_runtime import CARD

pytestmark = pytest.mark.slow

NUM_TEMPLATES = 70
UNUSABLE = {"CohereForAI-c4ai-command-r-plus-tool_use": "it fails without tools, and without `additionalProperties`"}
"""Of all templates, these do not work with tools."""
OTHER_PREFIX = {
    "Mistral-Small-3.2-24B-Instruct-2506": "the model's own id of the call",
    "mistralai-Mistral-Nemo-Instruct-2407": "the model's own id of the call",
    "unsloth-Apriel-1.5": "the model's own id of the call",
    "upstage-Solar-Open-100B": "the model's own id of the call",
    "tencent-Hy3": "it opens a thought only if an effort is given",
    "Apriel-1.6-15b-Thinker-fixed": "it writes no thoughts of earlier turns",
    "NVIDIA-Nemotron-Nano-v2": "it writes no thoughts of earlier turns",
    "Qwen-QwQ-32B": "it writes no thoughts of earlier turns",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "it writes no thoughts of earlier turns",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "it writes no thoughts of earlier turns",
    "llama-cpp-deepseek-r1": "it writes no thoughts of earlier turns",
    "llama-cpp-rwkv-world": "it writes no thoughts of earlier turns",
}
"""After a call, the prompts of these begin otherwise, and why."""
QUESTION: dict[str, Any] = {"role": "user", "content": "How is the weather?"}
ARGUMENTS: dict[str, Json] = {"city": 'New "York" é\nX', "days": 3, "opts": {"a": [1, None]}}
PARAMETERS: dict[str, Json] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "City."},
        "days": {"type": "integer", "description": "Days."},
        "opts": {"type": "object", "description": "Options."},
    },
    "required": ["city"],
}
TOOLS: list[dict[str, Json]] = [
    {"type": "function", "function": {"name": "weather", "description": "Says it.", "parameters": PARAMETERS}}
]
CALL: dict[str, Json] = {"name": "weather", "arguments": json.dumps(ARGUMENTS, ensure_ascii=False)}
THOUGHT, RESULT = "I think so.", "THE-RESULT"


def model(name: str) -> CardTemplate:
    card = msgspec.structs.replace(CARD, chat_template=templates()[name], bos_token="<s>", eos_token="</s>")
    return CardTemplate(card)


def rendered(template: CardTemplate, *messages: dict[str, Any], memory: Thoughts | None = None) -> str:
    given = messages_from_dicts(list(messages))
    variables = {"enable_thinking": True, "thinking": True} if template.chat_format.can_think else {}
    filled = given if memory is None else memory.filled_in(given)
    return template.render(filled, tools=TOOLS, template_kwargs=variables)


def assistant(call_id: str, **fields: Any) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": CALL}],
        **fields,
    }


def result_of(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": RESULT}


def reader_of(template: CardTemplate, opening: str) -> Reader:
    return Reader(template.chat_format.row, {"weather": PARAMETERS}, opening=opening)


@cache
def answered(name: str) -> tuple[str, str]:
    """A prompt, and the answer that calls the tool as the template writes that, up to the end of the call."""
    template = model(name)
    thought = {"reasoning_content": THOUGHT} if template.chat_format.can_think else {}
    prompt = rendered(template, QUESTION)
    whole = rendered(template, QUESTION, assistant("call00000", **thought), result_of("call00000")).partition(RESULT)[0]
    shared = next((at for at, pair in enumerate(zip(prompt, whole, strict=False)) if pair[0] != pair[1]), len(prompt))
    text = whole[shared:]
    if shared < len(prompt):  # thoughts of earlier turns are left out
        row = template.chat_format.row
        starts = [at for start in (*row.call_markers, "{") if (at := whole.find(start, max(0, shared - 40))) >= 0]
        text = f"{THOUGHT}{row.thinking[1]}\n\n{whole[min(starts) :]}"
    return prompt, _until_call_ends(template, prompt, text)


def _until_call_ends(template: CardTemplate, prompt: str, text: str) -> str:
    reader, shape = reader_of(template, prompt), template.chat_format.row.calls
    at = next(
        (i + 1 for i, char in enumerate(text) if any(isinstance(e, CallEnd) for e in reader.push(char))), len(text)
    )
    for marker in ("]", getattr(shape, "end", ""), getattr(shape, "section", ("", ""))[1]):
        rest = text[at:]
        if marker and rest.lstrip().startswith(marker):
            at += len(rest) - len(rest.lstrip()) + len(marker)
    return text[:at]


def failures(names: Iterator[str] | Sequence[str], check: Any) -> Mapping[str, str]:
    """What is wrong with each of these templates."""
    found: dict[str, str] = {}
    for name in names:
        try:
            problem = check(name)
        except (StokerError, ValueError) as error:
            problem = str(error)
        if problem:
            found[name] = problem
    return found


def test_every_template_works_with_tools() -> None:
    def check(name: str) -> str | None:
        template = model(name)
        history = rendered(template, QUESTION, assistant("call00000"), result_of("call00000"))
        if missing := [text for text in ("weather", "Options.", "York", RESULT) if text not in history]:
            return f"it loses {missing}"
        prompt, text = answered(name)
        reader = reader_of(template, prompt)
        calls = ToolCalls("call_", "").push_all([*reader.push(text), *reader.flush()]).calls
        read = [(call.name, json.loads(call.arguments)) for call in calls]
        return None if read == [("weather", ARGUMENTS)] else f"{text!r} reads as {read}"

    names = [*templates()]
    assert len(names) == NUM_TEMPLATES
    found = failures(names, check)
    assert found.keys() == UNUSABLE.keys(), found


def test_after_a_call_the_prompt_begins_with_what_was_computed() -> None:
    """Also if the client leaves the thoughts out."""

    def check(name: str) -> str | None:
        template = model(name)
        prompt, text = answered(name)
        memory = Thoughts(ThoughtMemory(1 << 20))
        reader = reader_of(template, prompt)
        parts = [*reader.push(text), *reader.flush()]
        (call,) = ToolCalls("call_", "", memory.keep).push_all(parts).calls
        function = {"name": call.name, "arguments": call.arguments}
        said = {"content": text_of(parts) or None, "tool_calls": [{"id": call.call_id, "function": function}]}
        following = rendered(template, QUESTION, {"role": "assistant", **said}, result_of(call.call_id), memory=memory)
        computed = prompt + text
        num_lost = len(computed) - next(
            (at for at, pair in enumerate(zip(computed, following, strict=False)) if pair[0] != pair[1]), len(computed)
        )
        return f"{num_lost} characters are lost" if num_lost > 8 else None

    found = failures([name for name in templates() if name not in UNUSABLE], check)
    assert found.keys() == OTHER_PREFIX.keys(), found


CONVERSATIONS: dict[str, str] = {
    "a developer": "developer user",
    "two system prompts": "system system user",
    "a developer and a system prompt": "developer system user",
    "a later system prompt": "system user assistant system user",
    "a later developer": "system user assistant developer user",
    "a system prompt at the end": "user assistant user system",
    "two questions": "system user user",
    "two answers": "user assistant assistant user",
    "an answer first": "assistant user",
    "an answer behind the system prompt": "system assistant user",
    "calls at once": "user calls result result user",
    "a question behind a result": "user call result user",
    "two questions behind a result": "user call result user user",
    "a system prompt behind a result": "system user call result system",
}
"""Roles of conversations that some templates refuse, or write in part."""


def conversation(roles: str) -> Iterator[dict[str, Any]]:
    waiting: Iterator[str] = iter(())
    for index, role in enumerate(roles.split()):
        match role:
            case "call" | "calls":
                ids = [f"call_{index}_{number}" for number in range(1 + role.count("s"))]
                calls = [{"id": call_id, "type": "function", "function": CALL} for call_id in ids]
                yield {"role": "assistant", "content": None, "tool_calls": calls}
                waiting = iter(ids)
            case "result":
                yield {"role": "tool", "content": f"text-{index}", "tool_call_id": next(waiting)}
            case _:
                yield {"role": role, "content": f"text-{index}"}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_no_template_refuses_or_loses_what_instructs_and_asks(name: str) -> None:
    messages = list(conversation(CONVERSATIONS[name]))
    tools = TOOLS if any(message["role"] == "tool" for message in messages) else []
    for template in templates():
        if template not in UNUSABLE:
            prompt = model(template).render(messages_from_dicts(messages), tools=tools)
            said = [message["content"] for message in messages if message["role"] != "assistant"]
            assert [text for text in said if text not in prompt] == [], template
