"""Python functions as tools: derives definitions from signature and docstring, and calls functions with JSON."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeAlias, cast, get_args, get_origin, get_type_hints

import msgspec
from docstring_parser import parse

from stoker.errors import InvalidInput
from stoker.llm.schemas import converted, schema_of

Tool: TypeAlias = Callable[..., object] | Mapping[str, Any]
"""A Python function, or a tool definition in OpenAI's format."""


@dataclass(frozen=True, slots=True)
class ToolFunction:
    """A Python function that a model may call."""

    definition: Mapping[str, Any]
    """The tool definition in OpenAI's format."""
    function: Callable[..., object]
    arguments: type[msgspec.Struct]
    """The parameters as a struct, with their types and defaults; its name is the function's."""

    def __call__(self, arguments: object) -> object:
        """Calls the function with arguments as a model wrote them; for an `async def`, the result is awaitable.

        Raises:
            InvalidInput: the arguments do not fit the parameters.
        """
        name = self.arguments.__name__
        try:
            values = converted(arguments, self.arguments)
        except (msgspec.ValidationError, ValueError) as error:
            raise InvalidInput(f"the arguments of `{name}` do not fit: {error}", parameter=name) from error
        return self.function(**{field: getattr(values, field) for field in values.__struct_fields__})


def split_tools(tools: Iterable[Tool] | None) -> tuple[list[Mapping[str, Any]], dict[str, ToolFunction]]:
    """The definitions of all tools, and the functions among them by name.

    Raises:
        InvalidInput: a tool is neither a function nor a definition, or no definition can be derived from a function.
    """
    if isinstance(tools, str | Mapping) or callable(tools):
        raise InvalidInput("`tools` must be a list of functions or definitions", parameter="tools")
    definitions: list[Mapping[str, Any]] = []
    functions: dict[str, ToolFunction] = {}
    for index, tool in enumerate(tools or ()):
        if isinstance(tool, Mapping):
            definitions.append(cast("Mapping[str, Any]", tool))
            continue
        made = tool_function(tool, f"tools[{index}]")
        functions[made.arguments.__name__] = made
        definitions.append(made.definition)
    return definitions, functions


def tool_function(function: object, where: str) -> ToolFunction:
    """A function as a tool, with the definition from its signature and docstring.

    Raises:
        InvalidInput: the object is not a function, or a parameter has no name or no JSON schema.
    """
    name = getattr(function, "__name__", None)
    if not callable(function) or not isinstance(name, str):
        message = f"`{where}` must be a function or a definition, not {type(function).__name__}"
        raise InvalidInput(message, parameter=where)
    doc = parse(inspect.getdoc(function) or "")
    notes = {param.arg_name: param.description for param in doc.params if param.description}
    arguments = msgspec.defstruct(name, _fields(function, notes, where), kw_only=True)
    definition = {
        "name": name,
        "description": (doc.description or "").strip(),
        "parameters": _parameters(arguments, where),
    }
    return ToolFunction({"type": "function", "function": definition}, function, arguments)


def _fields(function: Callable[..., object], notes: Mapping[str, str], where: str) -> list[tuple[Any, ...]]:
    """The parameters as fields of a struct: name, type, and the default if there is one."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise InvalidInput(f"`{where}`: the type of a parameter is unknown: {error}", parameter=where) from error
    fields: list[tuple[Any, ...]] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            message = f"`{where}`: `{parameter}` has no name that a model could use; tools take named parameters"
            raise InvalidInput(message, parameter=where)
        kind = _described(hints.get(name, Any), notes.get(name))
        default = parameter.default
        fields.append((name, kind) if default is parameter.empty else (name, kind, _default(default)))
    return fields


def _default(value: Any) -> Any:
    """Copies a mutable default, so that calls do not share one list, dict or set."""
    if type(value) in (list, dict, set):
        return msgspec.field(default_factory=partial(copy, value))
    return value


def _described(hint: Any, note: str | None) -> Any:
    """The type with the description of the parameter, from the docstring or else from `Annotated`."""
    if note is None and get_origin(hint) is Annotated:
        extras = get_args(hint)[1:]
        texts = (extra if isinstance(extra, str) else getattr(extra, "description", None) for extra in extras)
        note = next(filter(None, texts), None)
    return hint if note is None else Annotated[hint, msgspec.Meta(description=note)]


def _parameters(arguments: type[msgspec.Struct], where: str) -> dict[str, Any]:
    """The JSON schema of the parameters. The top level is the object itself, because chat templates read it there."""
    schema = schema_of(arguments, where)
    definitions: dict[str, Any] = schema.pop("$defs")
    top: dict[str, Any] = definitions.pop(arguments.__name__)
    top.pop("title", None)
    return {**top, "$defs": definitions} if definitions else top


def result_text(result: object) -> str:
    """The result of a tool as text for the model: strings unchanged, other values as JSON."""
    if isinstance(result, str):
        return result
    dump = getattr(result, "model_dump", None)
    plain = msgspec.to_builtins(dump(mode="json") if callable(dump) else result, enc_hook=str)
    return json.dumps(plain, ensure_ascii=False)
