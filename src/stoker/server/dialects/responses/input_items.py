"""Converts messages to the input items of OpenAI's responses, and selects pages of such items."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from msgspec import UNSET

from stoker.errors import InvalidInput
from stoker.server.dialects.responses.client_tools import (
    ID_PREFIXES,
    call_of,
    client_tool_of,
    result_item,
    result_prefix,
)
from stoker.server.dialects.responses.input_types import (
    InputCall,
    InputCustomCall,
    InputItem,
    InputItems,
    InputMessage,
    InputPart,
    InputReasoning,
)
from stoker.server.dialects.responses.reasoning_types import Compaction, ReasoningText
from stoker.server.dialects.responses.sealing import sealed_summary
from stoker.server.dialects.responses.summaries import summary_of
from stoker.server.dialects.responses.tools import namespace_of
from stoker.server.fields import page_limit
from stoker.text.chat_formats.custom import INPUT
from stoker.text.messages import Json, Message, Part, TextPart

_PAGE = 20
_MAX_PAGE = 100


def input_parts(response_id: str, messages: Sequence[Message]) -> list[tuple[str, Message]]:
    """The items of a response's input, as in `item_parts`, the oldest first. Repeated calls give the same ids."""
    stem = response_id.removeprefix("resp_")
    return [part for index, message in enumerate(messages) for part in item_parts(f"{stem}_{index}", message)]


def page_of(parts: Sequence[tuple[str, Message]], query: Mapping[str, str]) -> InputItems:
    """The page of items that a query selects. Only these are made: images and recordings become large texts.

    Args:
        parts: all items, as in `item_parts`, the oldest first.
        query: `limit` (1 to 100, default 20), `order` (`desc` = the newest first, or `asc`), `after` (an item's id).

    Raises:
        InvalidInput: a parameter of the query is invalid.
    """
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidInput(f"`order` must be `asc` or `desc`, not {order[:40]!r}", parameter="order")
    limit = page_limit(query, _PAGE, _MAX_PAGE)
    rest = _behind(list(parts) if order == "asc" else list(parts)[::-1], query.get("after"))
    page = rest[:limit]
    return InputItems(
        data=[item_of(item_id, part) for item_id, part in page],
        first_id=page[0][0] if page else None,
        last_id=page[-1][0] if page else None,
        has_more=len(page) < len(rest),
    )


def _behind(parts: list[tuple[str, Message]], after: str | None) -> list[tuple[str, Message]]:
    if not after:
        return parts
    index = next((index for index, (item_id, _) in enumerate(parts) if item_id == after), None)
    if index is None:
        raise InvalidInput(f"`after` names no item of this list: {after[:100]!r}", parameter="after")
    return parts[index + 1 :]


def item_parts(stem: str, message: Message) -> Iterator[tuple[str, Message]]:
    """Splits a message into items: the id of each, and a message that has only this item's part of the original.

    Ids contain `stem`. Of a message with calls and no content, only the calls are items.
    """
    if message.role == "tool":
        yield f"{result_prefix(message)}_{stem}", message
        return
    if message.content is not None or not message.tool_calls:
        prefix = "msg" if summary_of(message) is None else "cmp"
        yield f"{prefix}_{stem}", replace(message, tool_calls=())
    for number in range(len(message.tool_calls)):
        yield _call_part(stem, message, number)


def item_part(stem: str, message: Message, number: int | None) -> tuple[str, Message] | None:
    """One of the items of `item_parts`: of the call with a number, or the first one. None = there is no such call."""
    if number is None:
        return next(item_parts(stem, message))
    return _call_part(stem, message, number) if number < len(message.tool_calls) else None


def _call_part(stem: str, message: Message, number: int) -> tuple[str, Message]:
    call = message.tool_calls[number]
    reasoning = message.reasoning if message.content is None and number == 0 else None
    prefix = ID_PREFIXES.get(client_tool_of(call), "fc" if _input_of(call) is None else "ctc")
    return f"{prefix}_{stem}_{number}", Message(role=message.role, tool_calls=(call,), reasoning=reasoning)


def item_of(item_id: str, part: Message) -> InputItem:
    """The item of a message that `item_parts` made."""
    if part.role == "tool":
        return result_item(item_id, part)
    if part.tool_calls:
        return _call(item_id, part.tool_calls[0])
    if (summary := summary_of(part)) is not None:
        return Compaction(id=item_id, encrypted_content=sealed_summary(summary))
    if item_id.startswith("rs_"):
        return InputReasoning(id=item_id, content=[ReasoningText(text=part.reasoning or "")])
    pieces = part.content if isinstance(part.content, tuple) else (TextPart(part.text),)
    return InputMessage(id=item_id, role=part.role, content=[_part(piece, part.role) for piece in pieces])


def is_thought(message: Message) -> bool:
    """Whether a message is reasoning alone, without text and calls."""
    return message.role == "assistant" and bool(message.reasoning) and not (message.content or message.tool_calls)


def _part(part: Part, role: str) -> InputPart:
    if isinstance(part, TextPart):
        is_output = role == "assistant"
        return InputPart(
            type="output_text" if is_output else "input_text", text=part.text, annotations=[] if is_output else UNSET
        )
    data = base64.b64encode(part.media.data).decode()
    if part.media.kind == "image":
        return InputPart(type="input_image", image_url=f"data:image/*;base64,{data}")
    return InputPart(type="input_audio", input_audio={"data": data})


def _call(item_id: str, call: Mapping[str, Json]) -> InputItem:
    if client_tool_of(call):
        return call_of(item_id, call)
    raw = call.get("function")
    function = raw if isinstance(raw, dict) else {}
    named: dict[str, Any] = namespace_of(call)
    named["name"] = str(function.get("name") or "").removeprefix(f"{named['namespace']}." if named else "")
    named["call_id"] = str(call.get("id") or "")
    if (text := _input_of(call)) is not None:
        return InputCustomCall(id=item_id, input=text, **named)
    arguments = function.get("arguments")
    return InputCall(
        id=item_id,
        arguments=arguments if isinstance(arguments, str) else msgspec.json.encode(arguments or {}).decode(),
        **named,
    )


def _input_of(call: Mapping[str, Json]) -> str | None:
    """The text of a call of a custom tool; None for a call of a function."""
    function = call.get("function")
    arguments = function.get("arguments") if isinstance(function, dict) else None
    is_custom = call.get("type") == "custom" and isinstance(arguments, dict)
    return str(arguments.get(INPUT) or "") if is_custom and isinstance(arguments, dict) else None
