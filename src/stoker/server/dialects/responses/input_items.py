"""Converts messages to the input items of OpenAI's responses, and selects pages of such items."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from stoker.errors import InvalidInput
from stoker.server.dialects.responses.tools import namespace_of
from stoker.server.dialects.responses.types import (
    InputCall,
    InputCallOutput,
    InputCustomCall,
    InputItems,
    InputMessage,
    InputPart,
)
from stoker.text.chat_formats.custom import INPUT
from stoker.text.messages import Json, Message, Part, TextPart

InputItem: TypeAlias = InputMessage | InputCall | InputCustomCall | InputCallOutput

_PAGE = 20
_MAX_PAGE = 100


def input_items(response_id: str, messages: Sequence[Message]) -> list[InputItem]:
    """The items of a response's input, the oldest first. Repeated calls give the same ids."""
    stem = response_id.removeprefix("resp_")
    return [item for index, message in enumerate(messages) for item in items_of(f"{stem}_{index}", message)]


def page_of(items: Sequence[InputItem], query: Mapping[str, str]) -> InputItems:
    """The page of items that a query selects.

    Args:
        items: all items, the oldest first.
        query: `limit` (1 to 100, default 20), `order` (`desc` = the newest first, or `asc`), `after` (an item's id).

    Raises:
        InvalidInput: a parameter of the query is invalid.
    """
    order, limit = query.get("order", "desc"), query.get("limit", str(_PAGE))
    if order not in ("asc", "desc"):
        raise InvalidInput(f"`order` must be `asc` or `desc`, not {order[:40]!r}", parameter="order")
    if not (limit.isascii() and limit.isdecimal() and 1 <= int(limit[:9]) <= _MAX_PAGE):
        raise InvalidInput(f"`limit` must be a number from 1 to {_MAX_PAGE}, not {limit[:40]!r}", parameter="limit")
    rest = _behind(list(items) if order == "asc" else list(items)[::-1], query.get("after"))
    page = rest[: int(limit)]
    return InputItems(
        data=page,
        first_id=page[0].id if page else None,
        last_id=page[-1].id if page else None,
        has_more=len(page) < len(rest),
    )


def _behind(items: list[InputItem], after: str | None) -> list[InputItem]:
    if not after:
        return items
    index = next((index for index, item in enumerate(items) if item.id == after), None)
    if index is None:
        raise InvalidInput(f"`after` names no item of this list: {after[:100]!r}", parameter="after")
    return items[index + 1 :]


def items_of(stem: str, message: Message) -> list[InputItem]:
    """The items of one message, with `stem` in their ids. For a message with calls and no content, only the calls."""
    if message.role == "tool":
        return [InputCallOutput(id=f"fco_{stem}", call_id=message.tool_call_id or "", output=message.text)]
    calls = [_call(f"{stem}_{number}", call) for number, call in enumerate(message.tool_calls)]
    if message.content is None and calls:
        return [*calls]
    kind = "output_text" if message.role == "assistant" else "input_text"
    parts = message.content if isinstance(message.content, tuple) else (TextPart(message.text),)
    content = [_part(part, kind) for part in parts]
    return [InputMessage(id=f"msg_{stem}", role=message.role, content=content), *calls]


def _part(part: Part, text_type: str) -> InputPart:
    if isinstance(part, TextPart):
        return InputPart(type=text_type, text=part.text)
    data = base64.b64encode(part.media.data).decode()
    if part.media.kind == "image":
        return InputPart(type="input_image", image_url=f"data:image/*;base64,{data}")
    return InputPart(type="input_audio", input_audio={"data": data})


def _call(stem: str, call: Mapping[str, Json]) -> InputCall | InputCustomCall:
    raw = call.get("function")
    function = raw if isinstance(raw, dict) else {}
    arguments = function.get("arguments")
    named: dict[str, Any] = namespace_of(call)
    named["name"] = str(function.get("name") or "").removeprefix(f"{named['namespace']}." if named else "")
    named["call_id"] = str(call.get("id") or "")
    if call.get("type") == "custom" and isinstance(arguments, dict):
        return InputCustomCall(id=f"ctc_{stem}", input=str(arguments.get(INPUT) or ""), **named)
    return InputCall(
        id=f"fc_{stem}",
        arguments=arguments if isinstance(arguments, str) else msgspec.json.encode(arguments or {}).decode(),
        **named,
    )
