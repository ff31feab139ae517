"""The internal model of messages, independent of chat templates and wire formats. It renders nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, TypedDict, TypeGuard, cast

from stoker.errors import InvalidInput, UnsupportedParameter
from stoker.text.media_parts import MEDIA_TYPES, MediaPart, media_part

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"
"""A plain JSON value. Chat templates see no other values."""


@dataclass(frozen=True, slots=True)
class TextPart:
    """One text part of a message's content."""

    text: str


Part: TypeAlias = TextPart | MediaPart


@dataclass(frozen=True, slots=True)
class PartGroup:
    """Several parts that replace a single part, such as the content of a document."""

    parts: tuple[Part, ...]


Content: TypeAlias = str | tuple[Part, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation.

    Fields that Stoker does not interpret are kept unchanged in `extra`, for chat templates that use them.
    Roles are not checked here, because each chat template defines its own roles.
    """

    role: str
    content: Content = None
    """The content; None = not given, as in an assistant message that only calls tools."""
    name: str | None = None
    """The name of the speaker, or of the function in a tool message."""
    reasoning: str | None = None
    """The model's reasoning."""
    tool_calls: tuple[dict[str, Json], ...] = ()
    """Tool calls in OpenAI's format. `function.arguments` may be an object or a string. Calls of custom tools have a
    `function`, too."""
    tool_call_id: str | None = None
    extra: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """All other fields of the message."""

    @property
    def text(self) -> str:
        """The content as one string; several parts are joined by newlines, as llama-server and vLLM do.

        There is no newline before or after the marker of an image or a recording, as in llama-server.
        """
        if not isinstance(self.content, tuple):
            return self.content or ""
        text, is_behind_text = "", False
        for part in self.content:
            is_text = isinstance(part, TextPart)
            text += ("\n" if is_text and is_behind_text else "") + part.text
            is_behind_text = is_text
        return text


class RenderOptions(TypedDict, total=False):
    """How a model's chat template renders a conversation."""

    add_generation_prompt: bool
    """Open the assistant's turn at the end. Default: yes."""
    continue_final_message: bool
    """Leave the last message open, so that the answer continues it."""
    tools: Sequence[Mapping[str, Json]]
    """Tools that the model may call, defined as in OpenAI's API."""
    template_kwargs: Mapping[str, object] | None
    """Further variables of the template, such as `enable_thinking`."""


ArgumentForm: TypeAlias = Literal["text", "object", "either"]
"""Form of a call's arguments: JSON text; an object; or an object, except for text that is not a JSON object."""

_KINDS: Mapping[type, str] = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    int: "a number",
    float: "a number",
}
_TEXT_FIELDS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
_KNOWN_FIELDS = {"role", "content", "name", "tool_calls", "tool_call_id", *_REASONING_FIELDS}


def messages_from_dicts(raw: object, where: str = "messages") -> tuple[Message, ...]:
    """A conversation from a list of dicts in OpenAI's format, see `message_from_dict`.

    Raises:
        InvalidInput: `raw` is not a list or is empty, or a message is not valid; `fields["parameter"]` is the path.
    """
    if not isinstance(raw, list | tuple) or not raw:
        raise _invalid(where, "must be a list with at least one message")
    items = cast("list[object]", raw)
    return tuple(message_from_dict(item, f"{where}[{index}]") for index, item in enumerate(items))


def message_from_dict(raw: object, where: str) -> Message:
    """One message from a dict in OpenAI's format, including the variants that clients send.

    Content may be a string, null, missing, or an array of strings and parts. Reasoning is accepted under each of the
    three names in use, and as parts `thinking` of the content. Null always means "not given".

    Args:
        raw: the dict.
        where: path of the message in the request, such as `messages[2]`, for errors.

    Raises:
        InvalidInput: a field is invalid; `fields["parameter"]` is its path, such as `messages[2].content[0].text`.
        UnsupportedParameter: a content part is not text, image or audio, such as a video.
    """
    if not isinstance(raw, Mapping):
        raise _invalid(where, f"must be an object, not {_kind(raw)}")
    fields = cast("Mapping[object, object]", raw)
    reasoning = [_optional_text(fields.get(name), f"{where}.{name}") for name in _REASONING_FIELDS]
    content = fields.get("content")
    if fields.get("role") == "assistant":
        content, thoughts = _without_thoughts(content, f"{where}.content")
        reasoning.append(thoughts)
    given = [text for text in reasoning if text is not None]
    return Message(
        role=_role(fields.get("role"), f"{where}.role"),
        content=_content(content, f"{where}.content"),
        name=_optional_text(fields.get("name"), f"{where}.name"),
        reasoning=next(filter(None, given), "" if given else None),
        tool_calls=_tool_calls(fields.get("tool_calls"), f"{where}.tool_calls"),
        tool_call_id=_optional_text(fields.get("tool_call_id"), f"{where}.tool_call_id"),
        extra=_extra(fields, where),
    )


def checked_message(message: Message, where: str) -> Message:
    """The message with its fields checked and normalized like those of a dict, see `message_from_dict`.

    Raises:
        InvalidInput: a field is invalid; `fields["parameter"]` is its path.
        UnsupportedParameter: a content part is not text, image or audio, such as a video.
    """
    extra = plain_json(message.extra, f"{where}.extra")
    if not isinstance(extra, dict):
        raise _invalid(f"{where}.extra", f"must be an object, not {_kind(extra)}")
    return Message(
        role=_role(message.role, f"{where}.role"),
        content=_content(message.content, f"{where}.content"),
        name=_optional_text(message.name, f"{where}.name"),
        reasoning=_optional_text(message.reasoning, f"{where}.reasoning"),
        tool_calls=_tool_calls(message.tool_calls, f"{where}.tool_calls"),
        tool_call_id=_optional_text(message.tool_call_id, f"{where}.tool_call_id"),
        extra=extra,
    )


def message_to_dict(
    message: Message, *, parts: bool = False, images: bool = False, arguments: ArgumentForm = "either"
) -> dict[str, Json]:
    """The message as the plain dict that a chat template expects.

    Fields that were not given are omitted, except `content`. Reasoning is written under every name that templates use.

    Args:
        message: the message.
        parts: write content as a list of `{"type": "text", "text": …}`, for templates that iterate over parts.
        images: write images in that list as `{"type": "image"}` instead of text parts with their markers.
        arguments: the form of the arguments of tool calls.
    """
    values: dict[str, Json] = {"role": message.role, "content": _template_content(message, parts=parts, images=images)}
    if message.name is not None:
        values["name"] = message.name
    if message.reasoning is not None:
        values |= dict.fromkeys(_REASONING_FIELDS, message.reasoning)
    if message.tool_calls:
        values["tool_calls"] = [_with_arguments(call, arguments) for call in message.tool_calls]
    if message.tool_call_id is not None:
        values["tool_call_id"] = message.tool_call_id
    return values | dict(message.extra)


def plain_json(value: object, where: str) -> Json:
    """A deep copy of `value` with built-in JSON types only, so that a template cannot call methods of other classes.

    Raises:
        InvalidInput: the value contains something that is not JSON or not valid Unicode, or is nested too deeply.
    """
    try:
        return _plain(value, where)
    except RecursionError as error:
        raise _invalid(where, "is nested too deep") from error


def _plain(value: object, where: str) -> Json:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, where)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, list | tuple):
        return [_plain(item, where) for item in cast("list[object]", value)]
    if isinstance(value, Mapping):
        pairs = cast("Mapping[object, object]", value).items()
        return {_text(key, where): _plain(item, where) for key, item in pairs}
    raise _invalid(where, f"must be plain JSON, but has {_kind(value)} in it")


def _without_thoughts(content: object, where: str) -> tuple[object, str | None]:
    """The content without its parts `thinking`, and their text: a string, or an array of text parts."""
    if not isinstance(content, list | tuple):
        return content, None
    parts = list(cast("list[object]", content))
    thoughts: list[str] = []
    for index, part in enumerate(parts):
        fields = cast("Mapping[object, object]", part) if isinstance(part, Mapping) else dict[object, object]()
        if fields.get("type") == "thinking":
            said = content_parts(fields.get("thinking"), f"{where}[{index}].thinking")
            if not all(isinstance(piece, TextPart) for piece in said):
                path = f"{where}[{index}].thinking"
                raise UnsupportedParameter(f"`{path}` can only have text", parameter=path)
            thoughts.append("".join(piece.text for piece in said))
            parts[index] = PartGroup(())
    is_thought = len(thoughts) == len(parts) > 0
    return None if is_thought else parts, "".join(thoughts) if thoughts else None


def _content(raw: object, where: str) -> Content:
    if isinstance(raw, list | tuple):
        return content_parts(cast("list[object]", raw), where)
    if raw is None or isinstance(raw, str):
        return _optional_text(raw, where)
    raise _invalid(where, f"must be a string, an array of parts, or null, not {_kind(raw)}")


def content_parts(raw: object, where: str) -> tuple[Part, ...]:
    """The parts of a message's content, which is a string or an array.

    Raises:
        InvalidInput: the content is of another type, or a part is malformed.
        UnsupportedParameter: a part is not text, image or audio, such as a video.
    """
    if isinstance(raw, str):
        return (TextPart(_text(raw, where)),)
    if not isinstance(raw, list | tuple):
        raise _invalid(where, f"must be a string or an array of parts, not {_kind(raw)}")
    parts: list[Part] = []
    for index, item in enumerate(cast("list[object]", raw)):
        parts += item.parts if isinstance(item, PartGroup) else (_part(item, f"{where}[{index}]"),)
    return tuple(parts)


def _part(raw: object, where: str) -> Part:
    if isinstance(raw, MediaPart):
        return raw
    if isinstance(raw, TextPart):
        return TextPart(_text(raw.text, f"{where}.text"))
    if isinstance(raw, str):
        return TextPart(_text(raw, where))
    if not isinstance(raw, Mapping):
        raise _invalid(where, f"must be an object, not {_kind(raw)}")
    fields = cast("Mapping[object, object]", raw)
    kind = "text" if fields.get("type") is None else _text(fields["type"], f"{where}.type")
    if kind in MEDIA_TYPES:
        return media_part(kind, fields, where)
    if kind not in _TEXT_FIELDS:
        message = f"`{where}`: parts of type {kind!r} are not supported, only text, images and audio"
        raise UnsupportedParameter(message, parameter=where)
    name = _TEXT_FIELDS[kind]
    return TextPart(_text(fields.get(name), f"{where}.{name}"))


def _tool_calls(raw: object, where: str) -> tuple[dict[str, Json], ...]:
    if raw is None:
        return ()
    if not isinstance(raw, list | tuple):
        raise _invalid(where, f"must be an array, not {_kind(raw)}")
    calls: list[dict[str, Json]] = []
    for index, item in enumerate(cast("list[object]", raw)):
        call = plain_json(item, f"{where}[{index}]")
        if not isinstance(call, dict):
            raise _invalid(f"{where}[{index}]", f"must be an object, not {_kind(item)}")
        calls.append(_with_function(call))
    return tuple(calls)


def _with_function(call: dict[str, Json]) -> dict[str, Json]:
    """The call; a call of a custom tool becomes a call of a function with one argument, the text."""
    custom = call.get("custom")
    if call.get("type") != "custom" or not isinstance(custom, dict):
        return call
    text = custom.get("input")
    function: dict[str, Json] = {"name": custom.get("name"), "arguments": {"input": "" if text is None else text}}
    return {**{name: value for name, value in call.items() if name != "custom"}, "function": function}


def _extra(fields: Mapping[object, object], where: str) -> dict[str, Json]:
    names = {name: _text(name, where) for name in fields if name not in _KNOWN_FIELDS}
    values = {name: plain_json(fields[key], f"{where}.{name}") for key, name in names.items()}
    return {name: value for name, value in values.items() if value is not None}


def _role(raw: object, where: str) -> str:
    role = _text(raw, where)
    if not role:
        raise _invalid(where, "is empty")
    return role


def _optional_text(raw: object, where: str) -> str | None:
    return None if raw is None else _text(raw, where)


def _text(raw: object, where: str) -> str:
    if not isinstance(raw, str):
        raise _invalid(where, "is missing" if raw is None else f"must be a string, not {_kind(raw)}")
    text = str.__str__(raw)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _invalid(where, f"is not valid Unicode: a lone surrogate at character {error.start}") from error
    return text


def _template_content(message: Message, *, parts: bool, images: bool) -> Json:
    if not parts or message.content is None:
        return None if message.content is None else message.text
    content = (TextPart(message.content),) if isinstance(message.content, str) else message.content
    return [{"type": "image"} if images and is_image(part) else {"type": "text", "text": part.text} for part in content]


def is_image(part: Part) -> TypeGuard[MediaPart]:
    """Whether the part is an image."""
    return isinstance(part, MediaPart) and part.media.kind == "image"


def _with_arguments(call: dict[str, Json], form: ArgumentForm) -> dict[str, Json]:
    function = call.get("function")
    if not isinstance(function, dict) or "arguments" not in function:
        return call
    return {**call, "function": {**function, "arguments": arguments_as(form, function["arguments"])}}


def arguments_as(form: ArgumentForm, arguments: Json) -> Json:
    """The arguments of a call in the form that a template supports.

    Text that is not a JSON object, such as the arguments of a call that was cut off, is kept as text.
    """
    if arguments is None or (isinstance(arguments, str) and arguments.strip() in ("", "null")):
        arguments = {}
    try:
        parsed = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        parsed = arguments
    if not isinstance(parsed, dict):
        return {"arguments": arguments} if form == "object" else arguments
    if form != "text":
        return cast("Json", parsed)
    return arguments if isinstance(arguments, str) else json.dumps(parsed, ensure_ascii=False)


def _kind(value: object) -> str:
    return _KINDS.get(type(value), f"a value of type {type(value).__name__}")


def _invalid(where: str, problem: str) -> InvalidInput:
    return InvalidInput(f"`{where}` {problem}", parameter=where)
