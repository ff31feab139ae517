"""What the engine gives, in the shapes of Anthropic's replies and events."""

from __future__ import annotations

import os.path
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
from msgspec import UnsetType

from stoker.engine.protocol import Output, Usage
from stoker.server.answer import Asked, Delta, Writer
from stoker.server.dialects.anthropic.types import (
    AnthropicModel,
    AnthropicModelList,
    BlockDelta,
    BlockStart,
    BlockStop,
    Ending,
    MessageDelta,
    MessageReply,
    MessageStart,
    MessageStop,
    MessageUsage,
    Ping,
    TextBlock,
    TextDelta,
)
from stoker.server.dialects.openai.types import ModelEntry
from stoker.server.transport.sse import SSE, Framing

_encode = msgspec.json.Encoder().encode

_ENDINGS = (".gguf", ".onnx")


def _event(event: msgspec.Struct) -> bytes:
    name = str(event.__struct_config__.tag)
    return b"event: " + name.encode() + b"\ndata: " + _encode(event) + b"\n\n"


_PING = _event(Ping())

ANTHROPIC_SSE = Framing(SSE.content_type, _PING)


class AnthropicWriter(Writer):
    """`message_start`, `ping`, one block after another, `message_delta`, `message_stop`."""

    framing = ANTHROPIC_SSE

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._has_begun = False

    def push(self, delta: Delta) -> bytes:
        """The beginning comes with the first token: before that it is not known what the cache gave."""
        parts = [] if self._has_begun else self._begin(delta.output)
        self._has_begun = True
        if text := delta.text:
            parts.append(_event(BlockDelta(0, TextDelta(text))))
        if delta.is_last:
            parts += [
                _event(BlockStop(0)),
                _event(MessageDelta(_ending(delta.output), _usage(delta.output.usage))),
                _event(MessageStop()),
            ]
        return b"".join(parts)

    def whole(self, answers: Sequence[Delta]) -> MessageReply:
        (answer,) = answers
        return self._message([TextBlock(text=answer.text)], _ending(answer.output), answer.output)

    def _begin(self, output: Output) -> list[bytes]:
        message = self._message([], None, output)
        return [_event(MessageStart(message)), _PING, _event(BlockStart(0, TextBlock(text="")))]

    def _message(self, content: list[TextBlock], ending: Ending | None, output: Output) -> MessageReply:
        return MessageReply(
            id=self._asked.request.reply_id,
            model=self._asked.served.model_id,
            content=content,
            stop_reason=None if ending is None else ending.stop_reason,
            stop_sequence=None if ending is None else ending.stop_sequence,
            usage=_usage(output.usage),
        )


def model_entry(entry: ModelEntry) -> AnthropicModel:
    """A model as Anthropic's clients list them, loaded or not, or one of its adapters."""
    created = datetime.fromtimestamp(entry.created, UTC)
    return AnthropicModel(
        id=entry.id,
        display_name=_display_name(entry),
        created_at=created.isoformat(),
        max_input_tokens=entry.max_model_len,
        max_tokens=entry.max_model_len,
    )


def _display_name(entry: ModelEntry) -> str:
    """Its last name, but where its file lies. An adapter's name stands behind its model's."""
    adapter = "" if isinstance(entry.parent, UnsetType) else entry.id.removeprefix(entry.parent)
    aliases = (alias for alias in reversed(entry.aliases) if not _is_place(alias.removesuffix(adapter), entry.path))
    return next(aliases, entry.id)


def _is_place(name: str, path: str) -> bool:
    return name.lower().endswith(_ENDINGS) or os.path.normpath(os.path.expanduser(name)) == os.path.normpath(path)


def model_list(entries: Sequence[ModelEntry]) -> AnthropicModelList:
    """All of them; there is always one page."""
    data = [model_entry(entry) for entry in entries]
    return AnthropicModelList(data=data, first_id=data[0].id if data else None, last_id=data[-1].id if data else None)


def _ending(output: Output) -> Ending:
    if isinstance(output.stop_match, str):
        return Ending("stop_sequence", output.stop_match)
    return Ending("max_tokens" if output.finish_reason == "length" else "end_turn", None)


def _usage(usage: Usage) -> MessageUsage:
    return MessageUsage(
        input_tokens=usage.prompt_tokens - usage.cached_tokens,
        cache_read_input_tokens=usage.cached_tokens,
        output_tokens=usage.completion_tokens,
    )
