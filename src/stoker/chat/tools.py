"""The tools that a request offers and which of them may or must be called, in one form for all dialects.

Custom tools take text instead of JSON; a regular expression or a Lark grammar may constrain the text. The model, and
the grammar of its calls, see a custom tool as a function with one argument, the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from stoker.core.outline import GrammarText
from stoker.errors import InvalidInput
from stoker.lazy import lazy_module
from stoker.text.chat_formats.custom import INPUT
from stoker.text.chat_formats.grammar import Tool, ToolChoice
from stoker.text.messages import Json, plain_json

if TYPE_CHECKING:
    from stoker.grammars import lark, raw_text
else:
    lark = lazy_module("stoker.grammars.lark")  # needed only for custom tools with a grammar
    raw_text = lazy_module("stoker.grammars.raw_text")

_NOTATIONS = {"regex": "regular expression", "lark": "Lark grammar"}


def custom_function(raw: Mapping[str, Any], where: str) -> tuple[dict[str, Json], str | None]:
    """A custom tool as a function in OpenAI's format, and the pattern that its text must match; None = any text.

    Args:
        raw: the custom tool, with `name`, `description` and `format`.
        where: path of the tool in the request, for errors.

    Raises:
        InvalidInput: the format is malformed, or cannot be enforced.
    """
    description, pattern = _format(raw.get("format"), f"{where}.format")
    text: dict[str, Json] = {"type": "string", "description": description}
    parameters: dict[str, Json] = {"type": "object", "properties": {INPUT: text}, "required": [INPUT]}
    about = {name: raw[name] for name in ("name", "description") if raw.get(name) is not None}
    return {"type": "function", "function": {**about, "parameters": parameters}}, pattern


def constrained_input(pattern: str) -> dict[str, Json]:
    """The schema of the arguments of a custom tool whose text must match a pattern."""
    text: dict[str, Json] = {"type": "string", "pattern": pattern}
    return {"type": "object", "properties": {INPUT: text}, "required": [INPUT], "additionalProperties": False}


def _format(raw: object, where: str) -> tuple[str, str | None]:
    """The description of the text for the model, and the pattern that the text must match."""
    if raw is None:
        return "Any text.", None
    if not isinstance(raw, Mapping):
        raise InvalidInput(f"`{where}` must be an object", parameter=where)
    given = cast("Mapping[str, Any]", raw)
    match given.get("type"):
        case "text":
            return "Any text.", None
        case "grammar":
            nested = given.get("grammar", given)
            if isinstance(nested, Mapping):
                return _grammar(cast("Mapping[str, Any]", nested), where)
            raise InvalidInput(f"`{where}.grammar` must be an object", parameter=f"{where}.grammar")
        case _:
            raise InvalidInput(f"`{where}.type` must be text or grammar", parameter=f"{where}.type")


def _grammar(raw: Mapping[str, Any], where: str) -> tuple[str, str]:
    syntax, definition = raw.get("syntax"), raw.get("definition")
    if not isinstance(syntax, str) or syntax not in _NOTATIONS:
        raise InvalidInput(f"`{where}`: `syntax` must be regex or lark", parameter=f"{where}.syntax")
    if not isinstance(definition, str) or not definition:
        raise InvalidInput(f"`{where}`: `definition` is missing", parameter=f"{where}.definition")
    try:
        pattern = raw_text.whole_pattern(lark.regex_of_lark(definition) if syntax == "lark" else definition)
    except InvalidInput as error:
        raise type(error)(f"`{where}`: {error}", parameter=f"{where}.definition") from None
    return f"Text that matches this {_NOTATIONS[syntax]}:\n{definition}", pattern


MAX_TOOLS = 1024
_NAME = re.compile(r"[a-zA-Z0-9_.:/-]{1,128}")
_EMPTY: dict[str, Json] = {"type": "object", "properties": {}}

Mode: TypeAlias = Literal["auto", "required", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The tools of one request."""

    definitions: Sequence[Mapping[str, Json]] = ()
    """Tool definitions in OpenAI's format, checked: each has a name and a schema of its parameters."""
    mode: Mode = "auto"
    """`auto`: the model decides. `required`: the answer is at least one call. `none`: the answer is text."""
    allowed: frozenset[str] | None = None
    """Names of the tools that may be called; None = all."""
    parallel: bool = True
    """An answer may have several calls."""
    custom: Mapping[str, str | None] = field(default_factory=dict[str, "str | None"])
    """Names of the tools that take a text, each with the pattern that the text must match; None = any text."""

    unlisted: frozenset[str] = frozenset()
    """Names of the tools that the prompt's list leaves out, because a message describes them."""

    @property
    def listed(self) -> Sequence[Mapping[str, Json]]:
        """The tools of the prompt's list."""
        return [tool for tool in self.definitions if name_of(tool) not in self.unlisted]

    @property
    def callable(self) -> dict[str, Mapping[str, Json]]:
        """The schema of the parameters of each tool that may be called, by the tool's name."""
        if self.mode == "none":
            return {}
        schemas = {name_of(tool): parameters_of(tool) for tool in self.definitions}
        return {name: schema for name, schema in schemas.items() if self.allowed is None or name in self.allowed}

    @property
    def offered(self) -> list[Tool]:
        """All tools, in the form from which the grammar of calls is made."""
        return [self._offered(tool) for tool in self.definitions]

    @property
    def patterns(self) -> dict[str, str]:
        """The patterns of those custom tools that have one."""
        return {name: pattern for name, pattern in self.custom.items() if pattern is not None}

    def _offered(self, tool: Mapping[str, Json]) -> Tool:
        name = name_of(tool)
        if (pattern := self.custom.get(name)) is not None:
            return Tool(name=name, parameters=constrained_input(pattern), is_strict=True)
        is_strict = name in self.custom or _function(tool).get("strict") is True
        return Tool(name=name, parameters=parameters_of(tool), is_strict=is_strict)

    @property
    def choice(self) -> ToolChoice:
        """Which calls the answer may have. If `tool_choice` requires one tool by name, there is exactly one call."""
        is_named = self.mode == "required" and self.allowed is not None and len(self.allowed) == 1
        max_calls = 1 if is_named or not self.parallel else None
        return ToolChoice(mode=self.mode, names=self.allowed, max_calls=max_calls)


NO_TOOLS = Tools()


def tools_of(raw: Sequence[Mapping[str, Any]] | None, choice: object = None, *, parallel: bool | None = None) -> Tools:
    """The tools of a request from OpenAI's `tools`, `tool_choice` and `parallel_tool_calls`.

    Raises:
        InvalidInput: a tool or the choice is malformed, or names a tool that is not offered.
    """
    given = [_given(tool, f"tools[{index}]") for index, tool in enumerate(raw or ())]
    definitions = [definition for definition, _ in given]
    names = [name_of(tool) for tool in definitions]
    if len(definitions) > MAX_TOOLS:
        raise InvalidInput(f"{len(definitions)} tools are more than the {MAX_TOOLS} of one request", parameter="tools")
    if twice := {name for name in names if names.count(name) > 1}:
        raise InvalidInput(f"`tools` has several tools called {sorted(twice)[0]!r}", parameter="tools")
    mode, allowed = _choice(choice, names)
    custom = {name_of(definition): found[0] for definition, found in given if found is not None}
    return Tools(definitions=definitions, mode=mode, allowed=allowed, parallel=parallel is not False, custom=custom)


def generic_calls(tools: Tools, content: GrammarText | None = None) -> GrammarText:
    """A JSON schema of calls in the generic format or, if the model may choose, of either calls or content.

    For backends that forward to another server, which supports JSON schemas but no grammar of calls.

    Raises:
        InvalidInput: the constraint on the content is not a JSON schema.
    """
    calls: dict[str, Any] = {
        "type": "array",
        "items": {
            "anyOf": [
                _call_schema(
                    number, name, constrained_input(tools.patterns[name]) if name in tools.patterns else schema
                )
                for number, (name, schema) in enumerate(tools.callable.items())
            ]
        },
        "minItems": 1,
    }
    if tools.choice.max_calls is not None:
        calls["maxItems"] = tools.choice.max_calls
    schema = _object({"tool_calls": calls})
    if content is not None and tools.mode != "required":
        if content.kind not in ("json_schema", "json_object"):
            message = "with `tools`, an answer can follow a JSON schema, but no other constraint"
            raise InvalidInput(message, parameter="response_format")
        schema = {"anyOf": [schema, _embedded("content", json.loads(content.text or '{"type": "object"}'))]}
    return GrammarText(kind="json_schema", text=json.dumps(schema, ensure_ascii=False), is_strict=False)


def _call_schema(number: int, name: str, parameters: Mapping[str, Json]) -> dict[str, Any]:
    return _object({"name": {"const": name}, "arguments": _embedded(f"tool-{number}", parameters)})


def _embedded(name: str, schema: Any) -> Any:
    """A schema to be nested in another one. Its `$id` makes its `$ref`s resolve against the nested schema itself."""
    return (
        {"$id": f"https://stoker.invalid/{name}", **cast("dict[str, Any]", schema)}
        if isinstance(schema, dict)
        else schema
    )


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def name_of(tool: Mapping[str, Json]) -> str:
    """The name of a tool in a checked definition."""
    return str(_function(tool)["name"])


def parameters_of(tool: Mapping[str, Json]) -> Mapping[str, Json]:
    """The schema of the parameters in a checked definition."""
    parameters = _function(tool)["parameters"]
    assert isinstance(parameters, dict)
    return parameters


def _function(tool: Mapping[str, Json]) -> Mapping[str, Json]:
    function = tool["function"]
    assert isinstance(function, dict)
    return function


def _given(raw: Mapping[str, Any], where: str) -> tuple[Mapping[str, Json], tuple[str | None] | None]:
    """The definition of a tool as a function; for a custom tool, also a 1-tuple with the pattern of its text."""
    if raw.get("type") != "custom":
        return _definition(raw, where), None
    inner = raw.get("custom", raw)
    if not isinstance(inner, Mapping):
        raise InvalidInput(f"`{where}.custom` must be an object", parameter=f"{where}.custom")
    function, pattern = custom_function(cast("Mapping[str, Any]", inner), where)
    return _definition(function, where), (pattern,)


def _definition(raw: Mapping[str, Any], where: str) -> Mapping[str, Json]:
    tool = plain_json(raw, where)
    if not isinstance(tool, dict) or tool.get("type", "function") != "function":
        raise InvalidInput(f"`{where}.type` must be function or custom", parameter=f"{where}.type")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise InvalidInput(f"`{where}.function` is missing", parameter=f"{where}.function")
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        message = f"`{where}.function.name` must be 1 to 128 letters, digits, `_`, `-`, `.`, `:` or `/`"
        raise InvalidInput(message, parameter=f"{where}.function.name")
    parameters = function.get("parameters") or _EMPTY
    if not isinstance(parameters, dict):
        raise InvalidInput(
            f"`{where}.function.parameters` must be a JSON schema", parameter=f"{where}.function.parameters"
        )
    return {"type": "function", "function": {**function, "parameters": parameters}}


def _choice(raw: object, names: Sequence[str]) -> tuple[Mode, frozenset[str] | None]:
    if isinstance(raw, str):
        if raw in ("auto", "required", "none"):
            return _possible(raw, names), None
        if raw == "any":
            return _possible("required", names), None
        return "required", _named([raw], names)
    if raw is None:
        return "auto", None
    match raw:
        case (
            {"type": "function", "function": {"name": str(name)}}
            | {"type": "custom", "custom": {"name": str(name)}}
            | {"type": "function" | "custom" | "tool", "name": str(name)}
        ):
            return "required", _named([name], names)
        case {"type": "allowed_tools"}:
            return _allowed(cast("Mapping[str, Any]", raw), names)
        case {"type": "auto" | "required" | "none" | "any"}:
            return _choice(cast("Mapping[str, str]", raw)["type"], names)
        case _:
            message = "`tool_choice` must be auto, required, none, a function, or allowed_tools"
            raise InvalidInput(message, parameter="tool_choice")


def _allowed(raw: Mapping[str, Any], names: Sequence[str]) -> tuple[Mode, frozenset[str]]:
    found: object = raw.get("allowed_tools") or raw
    inner = cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {"tools": found}
    mode = inner.get("mode", "auto")
    if mode not in ("auto", "required"):
        raise InvalidInput("`tool_choice.mode` must be auto or required", parameter="tool_choice.mode")
    given: object = inner.get("tools") or []
    if not isinstance(given, list):
        raise InvalidInput("`tool_choice.tools` must be a list of tools", parameter="tool_choice.tools")
    if mode == "required" and not given:
        raise InvalidInput("`tool_choice` requires a tool, but allows none", parameter="tool_choice.tools")
    return mode, _named([_chosen_name(tool) for tool in cast("list[object]", given)], names)


def _chosen_name(tool: object) -> str:
    match tool:
        case {"function": {"name": str(name)}} | {"custom": {"name": str(name)}} | {"name": str(name)}:
            return name
        case _:
            message = "each of `tool_choice.tools` must be an object with the name of a tool"
            raise InvalidInput(message, parameter="tool_choice.tools")


def _named(wanted: Sequence[str], names: Sequence[str]) -> frozenset[str]:
    for name in wanted:
        if name not in names:
            raise InvalidInput(f"`tool_choice` names {name!r}, which `tools` does not offer", parameter="tool_choice")
    return frozenset(wanted)


def _possible(mode: Mode, names: Sequence[str]) -> Mode:
    if mode == "required" and not names:
        raise InvalidInput("`tool_choice` requires a tool, but `tools` offers none", parameter="tool_choice")
    return mode
