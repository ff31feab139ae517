"""Converts the engine's outputs to Anthropic's replies and events, and the registry's models to Anthropic's list."""

from __future__ import annotations

import os.path
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
from msgspec import UNSET, Raw, UnsetType

from stoker.chat.answers import Part, ToolCall, ToolCalls
from stoker.engine.protocol import Output, Usage
from stoker.server.answer import Asked, Delta, Writer
from stoker.server.dialects.anthropic.types import (
    AnthropicModel,
    AnthropicModelList,
    Block,
    BlockDelta,
    BlockStart,
    BlockStop,
    Ending,
    InputJSONDelta,
    MessageDelta,
    MessageEvent,
    MessageReply,
    MessageStart,
    MessageStop,
    MessageUsage,
    OutputTokensDetails,
    Ping,
    SignatureDelta,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
)
from stoker.server.models.types import ModelEntry
from stoker.server.transport.sse import SSE, Framing
from stoker.text.chat_formats.events import CallArguments, CallBegin, CallEnd, Content, Reasoning

_encode = msgspec.json.Encoder().encode

_ENDINGS = (".gguf", ".onnx")
_SIGNATURE = "stoker"
"""Signature of thinking blocks, which clients send back. It is constant and not verified: nothing is signed here."""


def _event(event: msgspec.Struct) -> bytes:
    name = str(event.__struct_config__.tag)
    return b"event: " + name.encode() + b"\ndata: " + _encode(event) + b"\n\n"


_PING = _event(Ping())

ANTHROPIC_SSE = Framing(SSE.content_type, _PING)


class AnthropicWriter(Writer):
    """Writes one answer: `message_start`, `ping`, one content block after another, `message_delta`, `message_stop`."""

    framing = ANTHROPIC_SSE

    def __init__(self, asked: Asked, *, omits_thinking: bool = False) -> None:
        self._asked = asked
        self._omits_thinking = omits_thinking
        self._calls = ToolCalls("toolu_", asked.request.reply_id, asked.request.thoughts.keep)
        self._open: type[Block] | None = None
        """Type of the content block that is open; None = none."""
        self._num_blocks = 0
        self._has_begun = False

    def push(self, delta: Delta) -> bytes:
        """The events of a delta. The first one brings `message_start`, because it tells the number of cached tokens."""
        events = [] if self._has_begun else self._begin(delta.output)
        self._has_begun = True
        for part in delta.parts:
            events += self._part(part)
        if delta.is_last:
            if not self._num_blocks:
                events += self._start(TextBlock(text=""))
            events += self._stop()
            ending = _ending(delta.output, self._calls)
            events += [MessageDelta(ending, _usage(delta.output.usage)), MessageStop()]
        return b"".join(map(_event, events))

    def whole(self, answers: Sequence[Delta]) -> MessageReply:
        (delta,) = answers
        calls = iter(self._calls.push_all(delta.parts).calls)
        blocks: list[Block] = []
        for part in delta.parts:
            match part:
                case Reasoning():
                    _add(blocks, ThinkingBlock(thinking=self._shown(part.text), signature=_SIGNATURE))
                case Content():
                    _add(blocks, TextBlock(text=part.text))
                case CallBegin():
                    call = next(calls)
                    blocks.append(ToolUseBlock(id=call.call_id, name=call.name, input=_input(call)))
                case _:
                    pass
        return self._message(blocks or [TextBlock(text="")], _ending(delta.output, self._calls), delta.output)

    def _begin(self, output: Output) -> list[MessageEvent]:
        return [MessageStart(self._message([], None, output)), Ping()]

    def _part(self, part: Part) -> list[MessageEvent]:
        self._calls.push(part)
        match part:
            case Reasoning():
                return [*self._start(ThinkingBlock(thinking="")), *self._thought(part.text)]
            case Content():
                return [*self._start(TextBlock(text="")), self._delta(TextDelta(part.text))]
            case CallBegin():
                call = self._calls.calls[-1]
                self._open = self._open if self._open is not ToolUseBlock else None
                return self._start(ToolUseBlock(id=call.call_id, name=call.name, input=Raw(b"{}")))
            case CallArguments():
                return [self._delta(InputJSONDelta(part.text))]
            case CallEnd():
                return self._stop()

    def _start(self, block: Block) -> list[MessageEvent]:
        """Begins a content block, unless a block of its type is open."""
        if self._open is type(block):
            return []
        stop = self._stop()
        self._open = type(block)
        self._num_blocks += 1
        return [*stop, BlockStart(self._num_blocks - 1, block)]

    def _stop(self) -> list[MessageEvent]:
        if self._open is None:
            return []
        signature = [self._delta(SignatureDelta(_SIGNATURE))] if self._open is ThinkingBlock else []
        self._open = None
        return [*signature, BlockStop(self._num_blocks - 1)]

    def _thought(self, text: str) -> list[MessageEvent]:
        return [] if self._omits_thinking else [self._delta(ThinkingDelta(text))]

    def _shown(self, reasoning: str) -> str:
        return "" if self._omits_thinking else reasoning

    def _delta(self, delta: TextDelta | ThinkingDelta | SignatureDelta | InputJSONDelta) -> BlockDelta:
        return BlockDelta(self._num_blocks - 1, delta)

    def _message(self, content: list[Block], ending: Ending | None, output: Output) -> MessageReply:
        return MessageReply(
            id=self._asked.request.reply_id,
            model=self._asked.served.model_id,
            content=content,
            stop_reason=None if ending is None else ending.stop_reason,
            stop_sequence=None if ending is None else ending.stop_sequence,
            usage=_usage(output.usage),
        )


def model_entry(entry: ModelEntry) -> AnthropicModel:
    """A model, loaded or not, or one of its adapters, in the shape of Anthropic's list."""
    created = datetime.fromtimestamp(entry.created, UTC)
    return AnthropicModel(
        id=entry.id,
        display_name=_display_name(entry),
        created_at=created.isoformat(),
        max_input_tokens=entry.max_model_len,
        max_tokens=entry.max_model_len,
    )


def _display_name(entry: ModelEntry) -> str:
    """A model's display name: the last of its aliases that is no file path, else its id; with the adapter's suffix."""
    adapter = "" if isinstance(entry.parent, UnsetType) else entry.id.removeprefix(entry.parent)
    aliases = (alias for alias in reversed(entry.aliases) if not _is_place(alias.removesuffix(adapter), entry.path))
    return next(aliases, entry.id)


def _is_place(name: str, path: str) -> bool:
    return name.lower().endswith(_ENDINGS) or os.path.normpath(os.path.expanduser(name)) == os.path.normpath(path)


def model_list(entries: Sequence[ModelEntry]) -> AnthropicModelList:
    """All models as one page."""
    data = [model_entry(entry) for entry in entries]
    return AnthropicModelList(data=data, first_id=data[0].id if data else None, last_id=data[-1].id if data else None)


def _add(blocks: list[Block], block: TextBlock | ThinkingBlock) -> None:
    """Appends a block, or joins its text to the last block if that has the same type."""
    last = blocks[-1] if blocks else None
    match last, block:
        case TextBlock(), TextBlock():
            blocks[-1] = TextBlock(text=last.text + block.text)
        case ThinkingBlock(), ThinkingBlock():
            blocks[-1] = msgspec.structs.replace(last, thinking=last.thinking + block.thinking)
        case _:
            blocks.append(block)


def _ending(output: Output, calls: ToolCalls) -> Ending:
    if isinstance(output.stop_match, str):
        return Ending("stop_sequence", output.stop_match)
    if output.finish_reason == "length":
        return Ending("max_tokens", None)
    return Ending("tool_use" if calls.has_complete else "end_turn", None)


def _input(call: ToolCall) -> Raw:
    """The arguments of a call, if they are a JSON object; else, as for a call that was cut off, an empty object."""
    try:
        is_object = isinstance(msgspec.json.decode(call.arguments or "{}"), dict)
    except (msgspec.DecodeError, RecursionError):
        is_object = False
    return Raw(call.arguments.encode()) if is_object and call.arguments else Raw(b"{}")


def _usage(usage: Usage) -> MessageUsage:
    details = OutputTokensDetails(usage.reasoning_tokens) if usage.reasoning_tokens else UNSET
    return MessageUsage(
        input_tokens=usage.prompt_tokens - usage.cached_tokens,
        cache_read_input_tokens=usage.cached_tokens,
        output_tokens=usage.completion_tokens,
        output_tokens_details=details,
    )
