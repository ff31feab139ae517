"""Detects the format of a model: the row of the table that parses what the model's own chat template writes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from stoker.errors import TemplateError
from stoker.text.chat_formats.events import CallArguments, CallBegin, CallEnd, Content, Event
from stoker.text.chat_formats.reader import read_whole
from stoker.text.chat_formats.table import FORMATS, GENERIC, MORE_THINKING, PLAIN, Format, Span
from stoker.text.chat_template import ChatTemplate
from stoker.text.messages import Json, Message

_ARGUMENTS: dict[str, Json] = {"city": 'New "York" é\nX', "days": 3, "opts": {"a": [1, None]}, "ok": True}
_SCHEMA: dict[str, Json] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "D"},
        "days": {"type": "integer", "description": "D"},
        "opts": {"type": "object", "description": "D"},
        "ok": {"type": "boolean", "description": "D"},
    },
    "required": ["city"],
}
_PARAMETERS: dict[str, dict[str, Json]] = {
    "probe_weather": _SCHEMA,
    "probe_ping": {"type": "object", "properties": dict[str, Json]()},
}


def _definition(name: str) -> dict[str, Json]:
    function: dict[str, Json] = {"name": name, "description": f"Probe {name}", "parameters": _PARAMETERS[name]}
    return {"type": "function", "function": function}


_TOOLS = [_definition(name) for name in _PARAMETERS]
_EXPECTED: list[tuple[str, dict[str, Json]]] = [("probe_weather", _ARGUMENTS), ("probe_ping", {})]
_REASONING, _CONTENT, _RESULT, _SYSTEM = "probe-reasoning", "probe-content", "probe-result", "probe-system"
_USER = Message(role="user", content="probe-question")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormat:
    """The capabilities of a chat template, detected by rendering small conversations with it."""

    row: Format
    reason: str
    """Why this row of the table was chosen, in words."""
    takes_system: bool = True
    """The template writes system prompts."""
    takes_more_systems: bool = True
    """The template writes further system prompts, too: after the first, and later in the conversation."""
    takes_developer: bool = True
    """The template writes messages with the role `developer`."""
    renders_tools: bool
    """The template writes the definitions of tools."""
    renders_calls: bool
    """The template writes tool calls of earlier turns."""
    renders_results: bool
    """The template writes the results of tools."""
    can_think: bool
    """The model may reason before it answers."""
    can_disable_thinking: bool
    """`enable_thinking: false` changes the prompt."""

    @property
    def thinking(self) -> Span:
        return self.row.thinking


def find_format(template: ChatTemplate, name: str = "") -> ChatFormat:
    """The format of a model, detected from its chat template.

    Args:
        template: the model's chat template.
        name: name of the format of tool calls, or `none`; empty = the one that the template writes.
    """
    turns = list(_call_turns(template))
    prompt = _render(template, [_USER], tools=_TOOLS)
    renders_tools = "probe_weather" in prompt
    row, reason = _named(name) if name else _row(template, turns, renders_tools=renders_tools)
    row, can_think = _with_thinking(template, row)
    return ChatFormat(
        row=row,
        reason=reason,
        takes_system=_SYSTEM in _render(template, [Message(role="system", content=_SYSTEM), _USER]),
        takes_developer=_SYSTEM in _render(template, [Message(role="developer", content=_SYSTEM), _USER]),
        takes_more_systems=_takes_more_systems(template),
        renders_tools=renders_tools,
        renders_calls=any("probe_weather" in turn.text for turn in turns),
        renders_results=_RESULT in _render(template, _history(), tools=_TOOLS),
        can_think=can_think,
        can_disable_thinking=can_think and _differs(template),
    )


@dataclass(frozen=True, slots=True)
class _Turn:
    """The text that a template writes for an assistant's turn with calls."""

    text: str
    opening: str
    """The end of the prompt before the turn."""
    num_calls: int


def _named(name: str) -> tuple[Format, str]:
    row = next((row for row in (*FORMATS, GENERIC) if row.name == name), PLAIN)
    return row, "chosen by the settings"


def _row(template: ChatTemplate, turns: Sequence[_Turn], *, renders_tools: bool) -> tuple[Format, str]:
    for turn in turns:
        wanted = _EXPECTED[: turn.num_calls]
        readings = [(row, *_read_calls(turn, row)) for row in FORMATS]
        matching = [(rest, row) for row, calls, rest in readings if calls == wanted]
        if matching:
            row = min(matching, key=lambda match: match[0])[1]
            limit = row.max_calls if turn.num_calls > 1 else 1
            return replace(row, max_calls=limit), "reads what the chat template writes"
    for row in FORMATS if renders_tools and not any("probe_weather" in turn.text for turn in turns) else ():
        if any(hint in template.source for hint in row.hints):
            return row, "named by the chat template, which writes no calls"
    return (
        GENERIC,
        "the chat template knows no tools" if not renders_tools else "the chat template writes no known calls",
    )


def _call_turns(template: ChatTemplate) -> Iterable[_Turn]:
    """The turns that the template writes for two calls, and for one."""
    for num_calls in (2, 1):
        opening, text = _turn(template, _call_message(num_calls))
        if text:
            yield _Turn(text, opening, num_calls)


def _call_message(num_calls: int) -> Message:
    calls: list[dict[str, Json]] = [
        {"id": f"call0000{index}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for index, (name, arguments) in enumerate(_EXPECTED[:num_calls])
    ]
    return Message(role="assistant", content="", tool_calls=tuple(calls))


def _history() -> list[Message]:
    result = Message(role="tool", content=_RESULT, name="probe_weather", tool_call_id="call00000")
    return [_USER, _call_message(1), result]


def _takes_more_systems(template: ChatTemplate) -> bool:
    texts = [f"{_SYSTEM}-{number}" for number in range(3)]
    first, second, late = (Message(role="system", content=text) for text in texts)
    answer = Message(role="assistant", content=_CONTENT)
    prompt = _render(template, [first, second, _USER, answer, late, _USER])
    return all(text in prompt for text in texts)


def _turn(template: ChatTemplate, message: Message) -> tuple[str, str]:
    """The prompt up to the turn's header, and the rest of the turn. Without a header: empty, and the whole turn."""
    before = _render(template, [_USER], add_generation_prompt=False, tools=_TOOLS)
    after = _render(template, [_USER, message], add_generation_prompt=False, tools=_TOOLS)
    if not before or not after:
        return "", ""
    opened = _render(template, [_USER], tools=_TOOLS)
    if after.startswith(opened):
        return opened, after[len(opened) :]
    return "", after[_num_shared(before, after) :]


def _num_shared(first: str, second: str) -> int:
    """The length of the common prefix."""
    return next((at for at, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), len(first))


def _read_calls(turn: _Turn, row: Format) -> tuple[list[tuple[str, Json]], int]:
    """The complete calls of a turn, as parsed in this format, and the number of characters that are left as content.

    If the format has calls without a marker, a header before the call is skipped.
    """
    events = read_whole(turn.text, row, _PARAMETERS, opening=turn.opening)
    is_unmarked = row.calls is not None and not all(row.calls.starts)
    if is_unmarked and not any(isinstance(event, CallBegin) for event in events):
        at = min((at for char in "{[" if (at := turn.text.find(char)) >= 0), default=0)
        events = read_whole(turn.text[at:], row, _PARAMETERS)
    return _complete_calls(events), sum(len(event.text) for event in events if isinstance(event, Content))


def _complete_calls(events: Iterable[Event]) -> list[tuple[str, Json]]:
    calls: list[tuple[str, Json]] = []
    name, arguments = "", ""
    for event in events:
        match event:
            case CallBegin():
                name, arguments = event.name, ""
            case CallArguments():
                arguments += event.text
            case CallEnd():
                calls.append((name, _loaded(arguments)))
            case _:
                pass
    return calls


def _loaded(arguments: str) -> Json:
    try:
        return json.loads(arguments)
    except ValueError:
        return None


def _with_thinking(template: ChatTemplate, row: Format) -> tuple[Format, bool]:
    """The row with the reasoning markers of the template, and whether the template has any."""
    reasoned = Message(role="assistant", content=_CONTENT, reasoning=_REASONING)
    texts = [_turn(template, reasoned)[1], *(_opening(template, value) for value in (True, None)), template.source]
    spans = [row.thinking, *dict.fromkeys(each.thinking for each in (PLAIN, *FORMATS)), *MORE_THINKING]
    for text in texts:
        for span in spans:
            if span[0] in text and (span[1] in text or text in texts[1:3]):
                return replace(row, thinking=span), True
    return row, False


def _differs(template: ChatTemplate) -> bool:
    return _opening(template, False) not in (_opening(template, True), "")


def _opening(template: ChatTemplate, enable_thinking: bool | None) -> str:
    """The end of a prompt, after the user's question."""
    values = {} if enable_thinking is None else {"enable_thinking": enable_thinking, "thinking": enable_thinking}
    prompt = _render(template, [_USER], tools=_TOOLS, **values)
    return prompt.rpartition("probe-question")[2]


def _render(
    template: ChatTemplate,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, object]] | None = None,
    **variables: Json,
) -> str:
    """The prompt; empty if the template refuses the conversation."""
    try:
        return template.render(messages, add_generation_prompt=add_generation_prompt, tools=tools, **variables)  # pyright: ignore[reportArgumentType]
    except TemplateError:
        return ""
