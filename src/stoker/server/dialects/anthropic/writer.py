"""What the engine gives, in the shapes of Anthropic's replies and events."""

from __future__ import annotations

import logging
import os.path
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime

import msgspec
from msgspec import UnsetType
from starlette.types import Scope

from stoker.engine.protocol import Output, Usage
from stoker.errors import StokerError
from stoker.runtime.registry import ServedModel
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
from stoker.server.errors import error_event
from stoker.server.generation import Generation
from stoker.server.transport.sse import SSE, Framing

_log = logging.getLogger(__name__)

_encode = msgspec.json.Encoder().encode

_ENDINGS = (".gguf", ".onnx")


def _event(event: msgspec.Struct) -> bytes:
    name = str(event.__struct_config__.tag)
    return b"event: " + name.encode() + b"\ndata: " + _encode(event) + b"\n\n"


_PING = _event(Ping())

ANTHROPIC_SSE = Framing(SSE.content_type, _PING)


def message_reply(reply_id: str, served: ServedModel, output: Output) -> MessageReply:
    """The reply to a request that does not stream."""
    ending = _ending(output)
    return MessageReply(
        id=reply_id,
        model=served.model_id,
        content=[TextBlock(text=output.text)],
        stop_reason=ending.stop_reason,
        stop_sequence=ending.stop_sequence,
        usage=_usage(output.usage),
    )


class AnthropicStream:
    """Writes one stream: `message_start`, `ping`, one block of text, `message_delta`, `message_stop`.

    Args:
        reply_id: the message's.
        served: the model that answers.
        generation: accepted, with one choice; it is read here, and closed by who opened it.
        scope: of the HTTP request, for errors.
    """

    def __init__(self, reply_id: str, served: ServedModel, generation: Generation, scope: Scope) -> None:
        self._reply_id = reply_id
        self._served = served
        self._generation = generation
        self._scope = scope
        self._has_begun = False

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The stream, one item per step. An error of the generation becomes the last event."""
        try:
            async for _, output in self._generation:
                if event := self._step(output):
                    yield event
        except StokerError as error:
            _log.warning("a stream ended with %s", error.code)
            yield error_event(error, self._scope)

    def _step(self, output: Output) -> bytes:
        """The beginning comes with the first token: only then it is known what the cache gave."""
        parts = [] if self._has_begun else self._begin(output)
        self._has_begun = True
        if output.text:
            parts.append(_event(BlockDelta(0, TextDelta(output.text))))
        if output.finish_reason is not None:
            parts += [
                _event(BlockStop(0)),
                _event(MessageDelta(_ending(output), _usage(output.usage))),
                _event(MessageStop()),
            ]
        return b"".join(parts)

    def _begin(self, output: Output) -> list[bytes]:
        message = MessageReply(
            id=self._reply_id,
            model=self._served.model_id,
            content=[],
            stop_reason=None,
            stop_sequence=None,
            usage=_usage(output.usage),
        )
        return [_event(MessageStart(message)), _PING, _event(BlockStart(0, TextBlock(text="")))]


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
