"""Describes the form of an answer that may call tools as a JSON plan, which `stoker.grammars.calls` makes a grammar.

Depends on the formats of calls (`Format`), but not on tokens or grammars. The parts of a plan:

    "<tool_call>"            this text; special tokens of the vocabulary that are spelled in it become these tokens
    [a, b]                   a sequence
    {"any": [a, b]}          one of the alternatives
    {"many": a, "least": 1, "most": null}    a repetition
    {"regex": "[0-9]+"}
    {"arguments": 0}         the arguments of tool 0 as JSON
    {"members": 0, …}        the arguments of tool 0, each in the notation that the other keys specify
    {"whole": [0, 1], …}     a JSON object that calls one of these tools, with the keys that the part specifies
    {"tools": "any"}         the call of any tool, from its name on: one of the plan's `options`
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, TypeAlias

from stoker.core.outline import GrammarText
from stoker.text.chat_formats.calls import takes_text
from stoker.text.chat_formats.shapes import AnyShape, BareCalls, JSONCalls, NamedCalls, PythonCalls, TaggedCalls
from stoker.text.chat_formats.table import Format
from stoker.text.messages import Json

Part: TypeAlias = "str | int | Sequence[Part] | Mapping[str, Part] | None"

_SPACE = r"(?:[ ]|(?:\r?\n){1,2}[ \t]{0,40})"
"""White space that may surround a marker. Templates write line breaks that models do not write, and vice versa."""
_SPACES = f"{_SPACE}?"
_GAP: Part = {"many": {"regex": _SPACE}, "least": 0, "most": 1}
_TOOLS: Part = {"tools": "any"}
_IN_JSON = {char: f"{_SPACES}{char}{_SPACES}" for char in ":,"}
_COMMA: Part = {"regex": _IN_JSON[","]}
_MAX_WRAPPERS = 4
_FORMS = {"{number}": "[0-9]{1,4}", "{id}": "[A-Za-z0-9_-]{1,64}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool that a request offers to the model."""

    name: str
    parameters: Any = field(default_factory=dict[str, Json])
    """JSON schema of its arguments."""
    is_strict: bool = False
    """Refuse a schema that cannot be enforced completely. False = the rest is dropped, and listed as such."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """Which calls an answer may have."""

    mode: Literal["auto", "required", "none"] = "auto"
    names: frozenset[str] | None = None
    """Names of the tools that may be called; None = all."""
    max_calls: int | None = None
    """1 = the answer ends with the first call; None = as many calls as the format allows."""


def call_grammar(
    row: Format,
    tools: Sequence[Tool],
    choice: ToolChoice | None = None,
    *,
    content: GrammarText | None = None,
    opening: str = "",
) -> GrammarText | None:
    """The grammar for the text after the reasoning.

    Args:
        row: the format in which the model writes calls.
        tools: all tools that the prompt offers.
        choice: which calls are allowed; None = the model decides.
        content: the grammar for an answer without calls.
        opening: the end of the prompt, which may begin a call.

    Returns:
        The plan as a `GrammarText`; None = no part of the answer is constrained.
    """
    choice = choice or ToolChoice()
    offered = [tool for tool in tools if choice.names is None or tool.name in choice.names]
    if row.calls is None or not offered:
        return content
    is_single = 1 in (choice.max_calls, row.max_calls)
    options = _options(row, offered)
    calls = [] if choice.mode == "none" else list(_groups(row, offered, options, is_single=is_single))
    if content is not None and content.kind in ("json_schema", "json_object"):
        calls = [_beside_json(row.calls, group, len(offered), is_single=is_single) for group in calls]
    plan = {
        "tools": [
            {"name": tool.name, "schema": json.dumps(tool.parameters), "is_strict": tool.is_strict} for tool in offered
        ],
        "options": options,
        "content": None if choice.mode == "required" else asdict(content) if content else True,
        "wrappers": list(row.wrappers),
        "calls": [_as_dict(group) for group in calls],
        "most": 1 if is_single else None,
        "opened": _opened(row, opening),
        "between": [_GAP, {"many": [{"any": list(row.wrappers)}, _GAP], "least": 0, "most": _MAX_WRAPPERS}]
        if row.wrappers
        else _GAP,
    }
    return GrammarText(kind="calls", text=json.dumps(plan, ensure_ascii=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """One way to begin calls: one call, or several between markers."""

    trigger: str = ""
    """The marker that begins the calls. Content may come before it."""
    head: str = ""
    """For calls without a marker: a regular expression for their beginning, with which content must not begin."""
    follows_content: bool = True
    rest: Part


def _opened(row: Format, opening: str) -> str:
    """The marker of a call with which the prompt ends; empty = none."""
    assert row.calls is not None
    tail = opening.rstrip()
    return next((start for start in row.calls.starts if start and tail.endswith(start.rstrip())), "")


def _as_dict(group: _Group) -> dict[str, Part]:
    return {each.name: getattr(group, each.name) for each in fields(group)}


def _options(row: Format, tools: Sequence[Tool]) -> list[Part]:
    """The call of each tool, from its name on."""
    match row.calls:
        case JSONCalls() as shape:
            key = "" if shape.name_is_key else f'{_IN_JSON[","]}"{shape.arguments_key}"'
            middle: Part = {"regex": key + _IN_JSON[":"]}
            return [[json.dumps(tool.name), middle, {"arguments": index}] for index, tool in enumerate(tools)]
        case NamedCalls() as shape:
            before = _before_arguments(shape)
            return [[tool.name, *before, {"arguments": index}] for index, tool in enumerate(tools)]
        case TaggedCalls() as shape:
            return [[tool.name, *_tagged(shape, index, tool)] for index, tool in enumerate(tools)]
        case PythonCalls():
            members: list[Part] = [{"members": index, "notation": "python"} for index in range(len(tools))]
            return [[f"{tool.name}(", _GAP, each, _GAP, ")"] for tool, each in zip(tools, members, strict=True)]
        case BareCalls() as shape:
            members = [{"members": index, "notation": "bare", "quote": shape.quote} for index in range(len(tools))]
            return [[tool.name, _GAP, "{", _GAP, each, _GAP, "}"] for tool, each in zip(tools, members, strict=True)]
        case None:
            return []


def _before_arguments(shape: NamedCalls) -> list[Part]:
    """The parts between the name and the arguments."""
    after: Part = {"any": [_form(text) for text in shape.writes_after]}
    if not shape.before_arguments.strip():
        return [after, shape.before_arguments, _GAP]
    return [after, _GAP, shape.before_arguments, _GAP, shape.fence[0], _GAP]


def _groups(row: Format, tools: Sequence[Tool], options: list[Part], *, is_single: bool) -> Iterator[_Group]:
    shape = row.calls
    assert shape is not None
    bare: list[_Group] = []
    if isinstance(shape, JSONCalls):
        rest, bare = _json_calls(shape, row, is_single=is_single)
    elif isinstance(shape, PythonCalls):
        rest, bare = _python_calls(shape, tools, options, is_single=is_single)
    else:
        rest = _one_call(shape)
    section = getattr(shape, "section", ("", ""))
    if section[0]:
        call: Part = [{"any": [[start, rest] for start in shape.starts]}, _GAP]
        yield _Group(trigger=section[0], rest=[_GAP, _list_of(call, None, is_single=is_single), section[1]])
        return
    for start in shape.starts:
        is_clear = bool(start) and _is_clear(start, shape.starts[0])
        yield from [_Group(trigger=start, follows_content=is_clear, rest=rest)] if start else bare


def _beside_json(shape: AnyShape, group: _Group, num_tools: int, *, is_single: bool) -> _Group:
    """If content is JSON, too, a call without a marker becomes one JSON value: both begin with the same brace."""
    if not group.head or not isinstance(shape, JSONCalls):
        return group
    keys = {"name_key": shape.name_key, "arguments_key": shape.arguments_key, "wrapper": shape.wrapper}
    return _Group(rest={"whole": list(range(num_tools)), "most": 1 if is_single else None, **keys})


def _is_clear(start: str, first: str) -> bool:
    """Whether content is unlikely to contain the marker by chance, or the format has no better marker."""
    return start == first or (start[0] in "<[" and not (first and start.endswith(first)))


def _list_of(call: Part, separator: Part | None, *, is_single: bool) -> Part:
    if is_single:
        return call
    if separator is None:
        return {"many": call, "least": 1, "most": None}
    return [call, {"many": [separator, call], "least": 0, "most": None}]


def _one_call(shape: NamedCalls | TaggedCalls | BareCalls) -> Part:
    if not isinstance(shape, NamedCalls):
        return [() if isinstance(shape, BareCalls) else _GAP, _TOOLS, _GAP, shape.end]
    gap = _GAP if shape.before_arguments.strip() else ()
    return [gap, *_form(shape.writes_before), shape.before_name, _TOOLS, _GAP, shape.fence[1], _GAP, shape.end]


def _form(text: str) -> list[Part]:
    """A template text as parts, with its placeholders as regular expressions."""
    parts = re.split(r"(\{\w+\})", text)
    return [{"regex": _FORMS[part]} if part in _FORMS else part for part in parts if part]


def _tagged(shape: TaggedCalls, index: int, tool: Tool) -> list[Part]:
    head = [*_form(shape.writes_head), shape.head_end] if shape.head_end else []
    parameters: Json = tool.parameters
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    known = properties if isinstance(properties, dict) else {}
    members: Part = {
        "members": index,
        "notation": "tagged",
        "key": [shape.key_start, shape.key_end],
        "attributes": list(shape.writes_attributes) if shape.attributes_end else None,
        "before_value": [shape.attributes_end, *([_GAP, shape.value_start] if shape.value_start else [])],
        "value_end": shape.value_end,
        "quotes": list(shape.quotes),
        "trims": shape.trims_newline,
        "texts": [name for name, schema in known.items() if takes_text(schema)],
        "gap": _GAP,
    }
    return [shape.name_end, *head, members]


def _python_calls(
    shape: PythonCalls, tools: Sequence[Tool], options: list[Part], *, is_single: bool
) -> tuple[Part, list[_Group]]:
    """The part after a marker, and groups for calls without a marker."""
    more: Part = {"many": [_COMMA, _TOOLS], "least": 0, "most": 0 if is_single else None}
    bare: list[_Group] = []
    for tool, option in zip(tools, options, strict=True):
        assert isinstance(option, list)
        head = rf"{_SPACES}\[{_SPACES}{re.escape(tool.name)}\("
        bare.append(_Group(head=head, rest=[*option[1:], more, _GAP, "]"]))
    return [_GAP, "[", _GAP, _TOOLS, more, _GAP, "]", _GAP, shape.end], bare


def _json_calls(shape: JSONCalls, row: Format, *, is_single: bool) -> tuple[Part, list[_Group]]:
    """The part after a marker, and groups for calls without a marker."""
    colon, comma = _IN_JSON[":"], _IN_JSON[","]
    before_id = f'"{shape.id_key}"{colon}"'
    early = f'(?:{before_id}[0-9]{{1,4}}"{comma})?' if shape.id_key and row.id_form == "any" else ""
    late = f'(?:{comma}{before_id}[A-Za-z0-9]{{9}}")?' if shape.id_key and row.id_form != "any" else ""
    key = "" if shape.name_is_key else f'"{shape.name_key}"'
    call: Part = [_TOOLS, {"regex": rf"{late}{_SPACES}\}}"}]
    whole: Part = [{"regex": rf"\{{{_SPACES}{early}{key}{colon if key else ''}"}, call]
    array: Part = ["[", _GAP, _list_of(whole, _COMMA, is_single=is_single), _GAP, "]"]
    # Without a marker at the end, a bracket after an object would be read as part of a list.
    lists = [array, _list_of(whole, _GAP, is_single=is_single)] if shape.end or is_single else [array]
    marked: Part = [_GAP, {"any": lists}, _GAP, shape.end]
    # The head ends with the first key, which distinguishes calls from other JSON objects.
    head = rf"{_SPACES}\{{{_SPACES}" + (f'"{shape.wrapper}"' if shape.wrapper else key)
    rest: Part = [{"regex": colon}, [array, _GAP, "}"] if shape.wrapper else call]
    return marked, [_Group(head=head, rest=rest)]
