"""Adapts conversations with tools to what a model's chat template supports."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from stoker.text.chat_formats.alternation import by_system
from stoker.text.chat_formats.probe import ChatFormat
from stoker.text.chat_formats.shapes import JSONCalls, NamedCalls, PythonCalls
from stoker.text.chat_formats.table import GENERIC, Format
from stoker.text.messages import Content, Json, Message, Part, TextPart, arguments_as

_INSTRUCTION = """\
You can call functions. These are the available functions, one JSON object per line:
{tools}
To call functions, write this, with the names and arguments that you need:
{example}
Call a function only if you need it. Otherwise answer in plain text."""
_RESULT = "Result of {name}:\n{content}"
_ID_CHARS = 9
_UNKNOWN = "unknown"
"""Name for the function of a tool result whose call is not in the conversation."""


def prepared(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Json]], chat_format: ChatFormat
) -> tuple[list[Message], list[Mapping[str, Json]] | None]:
    """The messages and tools for the template; the tools are None if the template does not support them.

    Definitions, calls and results that the template does not support become text of the messages, so that nothing of
    the conversation is lost. Ids of calls get the form that the model was trained with.
    """
    row = chat_format.row
    names = _names_by_id(messages)
    ids = _ids(names, row)
    adapted = [_adapted(message, chat_format, names, ids) for message in messages]
    if not tools:
        return adapted, None
    if chat_format.renders_tools and row.name != GENERIC.name:
        return adapted, list(tools)
    return _with_instruction(adapted, instruction(tools, row), takes_system=chat_format.takes_system), None


def plainer(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Json]] | None, *, takes_system: bool
) -> tuple[list[Message], list[Mapping[str, Json]] | None]:
    """The conversation for a template that has refused it, with fields that templates take for granted.

    Tools get a description and parameters, and results a name. An empty assistant message becomes a space, and role
    `developer` becomes `system`. If the template has no system prompt, its text is prepended to the next user message.
    """
    given = [*map(_stated, by_system(messages))]
    return given if takes_system else _without_system(given), None if tools is None else [*map(_completed, tools)]


def _stated(message: Message) -> Message:
    match message.role:
        case "tool":
            return replace(message, name=message.name or _UNKNOWN)
        case "assistant" if not (message.text or message.tool_calls):
            return replace(message, content=" ")
        case _:
            return message


def _completed(tool: Mapping[str, Json]) -> Mapping[str, Json]:
    function = tool.get("function")
    if not isinstance(function, dict):
        return tool
    parameters = function.get("parameters")
    usual: dict[str, Json] = {"type": "object", "properties": {}}
    return {
        **tool,
        "function": {
            **function,
            "description": function.get("description") or "",
            "parameters": usual | parameters if isinstance(parameters, dict) else usual,
        },
    }


def _without_system(messages: Iterable[Message]) -> list[Message]:
    found: list[Message] = []
    texts: list[str] = []
    for message in messages:
        if message.role == "system":
            texts.append(message.text)
        elif message.role == "user" and texts:
            found.append(_begun_with("\n\n".join(texts), message))
            texts = []
        else:
            found.append(message)
    return [*found, Message(role="user", content="\n\n".join(texts))] if texts else found


def instruction(tools: Sequence[Mapping[str, Json]], row: Format) -> str:
    """The text for the system prompt that lists the tools, and shows how to call one in this format."""
    functions = [json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools]
    example = written([("function-name", {"argument-name": "value"})], row)
    return _INSTRUCTION.format(tools="\n".join(functions), example=example)


def written(calls: Sequence[tuple[str, Json]], row: Format) -> str:
    """The text of calls in this format, as the model would write them."""
    shape = row.calls
    if isinstance(shape, NamedCalls):
        return _written_named(calls, shape)
    if isinstance(shape, PythonCalls):
        return f"{shape.start}[{', '.join(_python_call(*call) for call in calls)}]{shape.end}"
    if not isinstance(shape, JSONCalls) or shape.name_is_key:
        shape = GENERIC.calls
        assert isinstance(shape, JSONCalls)
    objects = [
        json.dumps({shape.name_key: name, shape.arguments_key: arguments}, ensure_ascii=False)
        for name, arguments in calls
    ]
    if shape.wrapper:
        return f'{{"{shape.wrapper}": [{", ".join(objects)}]}}'
    if not shape.end:
        return f"{shape.start}[{', '.join(objects)}]"
    return "\n".join(f"{shape.start}\n{each}\n{shape.end}" for each in objects)


def _written_named(calls: Iterable[tuple[str, Json]], shape: NamedCalls) -> str:
    texts = [
        f"{shape.start}{_filled(shape.writes_before)}{shape.before_name}{name}{_filled(shape.writes_after[0])}"
        f"{_on_line(shape.before_arguments)}{json.dumps(arguments, ensure_ascii=False)}"
        f"{_on_line(shape.fence[1])}{shape.end}"
        for name, arguments in calls
    ]
    return shape.section[0] + "".join(texts) + shape.section[1]


def _filled(form: str) -> str:
    return form.format(number=0, id="call")


def _on_line(fence: str) -> str:
    """The fence; a Markdown fence gets its own line."""
    if not fence.startswith("```"):
        return fence
    return f"\n{fence}\n" if len(fence) > len("```") else f"\n{fence}"


def _python_call(name: str, arguments: Json) -> str:
    pairs = arguments.items() if isinstance(arguments, dict) else ()
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in pairs)})"


def _names_by_id(messages: Iterable[Message]) -> dict[str, str]:
    """The name of each call's function by the call's id, in order of the calls."""
    return {
        call_id: name
        for message in messages
        for call in message.tool_calls
        if isinstance(call_id := call.get("id"), str) and (name := _function_name(call))
    }


def _function_name(call: Mapping[str, Json]) -> str:
    function = call.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else ""


def _ids(names: Mapping[str, str], row: Format) -> dict[str, str]:
    """The id of each call in the form that this format uses, by the original id."""
    if row.id_form == "alnum9":
        return {call_id: _alnum_id(call_id) for call_id in names}
    if row.id_form == "kimi":
        return {call_id: f"functions.{name}:{index}" for index, (call_id, name) in enumerate(names.items())}
    return {call_id: call_id for call_id in names}


def _alnum_id(call_id: str) -> str:
    if len(call_id) == _ID_CHARS and call_id.isascii() and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:_ID_CHARS]


def _adapted(message: Message, chat_format: ChatFormat, names: Mapping[str, str], ids: Mapping[str, str]) -> Message:
    if message.role in ("tool", "function"):
        return _adapted_result(message, chat_format, names, ids)
    if not message.tool_calls:
        return message
    calls = tuple(_with_id(call, ids) for call in message.tool_calls)
    if chat_format.renders_calls and chat_format.row.name != GENERIC.name:
        return replace(message, tool_calls=calls)
    text = written([(_function_name(call), _arguments(call)) for call in calls], chat_format.row)
    return replace(message, content="\n".join(filter(None, (message.text, text))), tool_calls=())


def _adapted_result(
    message: Message, chat_format: ChatFormat, names: Mapping[str, str], ids: Mapping[str, str]
) -> Message:
    call_id = message.tool_call_id or ""
    name = message.name or names.get(call_id)
    if chat_format.renders_results and chat_format.row.name != GENERIC.name:
        other = _alnum_id(call_id) if chat_format.row.id_form == "alnum9" and call_id else message.tool_call_id
        return replace(message, name=name, tool_call_id=ids.get(call_id, other))
    return Message(role="user", content=_RESULT.format(name=name or "the function", content=message.text))


def _with_id(call: dict[str, Json], ids: Mapping[str, str]) -> dict[str, Json]:
    call_id = call.get("id")
    call = {**call, "type": "function"}
    return {**call, "id": ids[call_id]} if isinstance(call_id, str) and call_id in ids else call


def _arguments(call: Mapping[str, Json]) -> Json:
    function = call.get("function")
    return arguments_as("either", function.get("arguments") if isinstance(function, dict) else None)


def _with_instruction(messages: Sequence[Message], text: str, *, takes_system: bool) -> list[Message]:
    """Appends `text` to the system prompt, or to a new one. If the template has none, it precedes a first question."""
    first = messages[0] if messages else None
    if not takes_system and first is not None and first.role == "user":
        return [_begun_with(text, first), *messages[1:]]
    if first is not None and first.role in ("system", "developer"):
        return [replace(first, content=f"{first.text}\n\n{text}"), *messages[1:]]
    return [Message(role="system", content=text), *messages]


def _begun_with(text: str, message: Message) -> Message:
    content = message.content if isinstance(message.content, tuple) else (TextPart(message.text),)
    return replace(message, content=_merged(TextPart(f"{text}\n\n"), content))


def _merged(first: TextPart, parts: tuple[Part, ...]) -> Content:
    """The content that begins with `first`: parts, or one string if all are text, with no line break after `first`."""
    if all(isinstance(part, TextPart) for part in parts):
        return first.text + Message(role="user", content=parts).text
    return (first, *parts)
