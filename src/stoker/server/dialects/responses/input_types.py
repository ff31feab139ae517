"""The JSON types of the items of a response's input and of a conversation."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from stoker.server.dialects.responses.client_tool_types import ClientCall, ClientCallOutput
from stoker.server.dialects.responses.reasoning_types import Compaction, ReasoningText, SummaryText


class InputPart(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of a message."""

    type: str
    """`input_text`, or `output_text` in an assistant's message; `input_image`; `input_audio`."""
    text: str | UnsetType = UNSET
    image_url: str | UnsetType = UNSET
    """A `data:` URL."""
    input_audio: dict[str, str] | UnsetType = UNSET
    """`data` in base64."""
    annotations: list[Any] | UnsetType = UNSET
    """Empty in `output_text`, and not given elsewhere."""


class InputMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    id: str
    role: str
    content: list[InputPart]
    status: str = "completed"


class InputCall(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"):
    """A call of a function that an earlier answer contains."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: str = "completed"
    namespace: str | UnsetType = UNSET
    """The tool's namespace, if it has one."""


class InputCallOutput(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call_output"):
    """The result of a call."""

    id: str
    call_id: str
    output: str
    status: str = "completed"


class InputCustomCall(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="custom_tool_call"):
    """A call of a custom tool that an earlier answer contains."""

    id: str
    call_id: str
    name: str
    input: str
    status: str = "completed"
    namespace: str | UnsetType = UNSET
    """The tool's namespace, if it has one."""


class InputReasoning(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    """The reasoning of an earlier answer."""

    id: str
    content: list[ReasoningText]
    summary: list[SummaryText] = []
    status: str = "completed"


class InputCustomCallOutput(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="custom_tool_call_output"):
    """The result of a call of a custom tool."""

    id: str
    call_id: str
    output: str
    status: str = "completed"


InputItem: TypeAlias = (
    InputMessage
    | Compaction
    | InputCall
    | InputCustomCall
    | InputCallOutput
    | InputReasoning
    | InputCustomCallOutput
    | ClientCall
    | ClientCallOutput
)


class InputItems(msgspec.Struct, frozen=True, kw_only=True):
    """One page of the items of a response's input."""

    data: list[InputItem]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: str = "list"
