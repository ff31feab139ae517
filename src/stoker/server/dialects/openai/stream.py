"""A generation as the bytes of an OpenAI stream. Head and tail of a chunk are encoded once, not per token."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from typing import Generic

import msgspec

from stoker.engine.protocol import Output
from stoker.errors import StokerError
from stoker.server.dialects.openai.types import ReplyHead, StreamOptions
from stoker.server.dialects.openai.writer import ChunkT, ReplyShape, timings, usage_reply
from stoker.server.errors import error_body
from stoker.server.generation import Generation
from stoker.server.transport.sse import DONE, error_event

_log = logging.getLogger(__name__)

_END = b"}\n\n"


class OpenAIStream(Generic[ChunkT]):
    """Writes one stream: chunks, then the usage chunk if it is asked for, then `[DONE]`.

    Args:
        head: what all chunks have in common.
        shape: chat or completions.
        generation: accepted; it is read here, and closed by who opened it.
        options: the request's `stream_options`.
    """

    def __init__(
        self, head: ReplyHead, shape: ReplyShape[ChunkT], generation: Generation, options: StreamOptions
    ) -> None:
        self._shape = shape
        self._generation = generation
        self._wants_usage = bool(options.include_usage)
        self._wants_running_usage = bool(options.continuous_usage_stats)
        self._num_open = generation.num_choices
        self._encoder = msgspec.json.Encoder()
        self._head = b"data: " + self._encoder.encode(head)[:-1] + b',"choices":['
        self._tail = b'],"usage":null' + _END if self._wants_usage else b"]" + _END

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The stream, one item per step. An error of the generation becomes the last event, without `[DONE]`."""
        try:
            async for index, output in self._generation:
                if event := self._step(index, output):
                    yield event
            if self._wants_usage:
                yield self._head + b"]" + self._usage() + self._timings() + _END
            yield DONE
        except StokerError as error:
            _log.warning("a stream ended with %s", error.code)
            yield error_event(error_body(error))

    def _step(self, index: int, output: Output) -> bytes:
        chunks = self._shape.push(index, output)
        if output.finish_reason is None:
            tail = self._running_tail()
            return b"".join([self._chunk(chunk, tail) for chunk in chunks])
        self._num_open -= 1
        *others, last = chunks
        return b"".join(
            [*(self._chunk(chunk, self._running_tail()) for chunk in others), self._chunk(last, self._final_tail())]
        )

    def _chunk(self, choice: ChunkT, tail: bytes) -> bytes:
        return self._head + self._encoder.encode(choice) + tail

    def _running_tail(self) -> bytes:
        return b"]" + self._usage() + _END if self._wants_running_usage else self._tail

    def _final_tail(self) -> bytes:
        """The tail of a choice's last chunk; llama-server's clients read `timings` from the last chunk of all."""
        if self._num_open or self._wants_usage:
            return self._running_tail()
        usage = self._usage() if self._wants_running_usage else b""
        return b"]" + usage + self._timings() + _END

    def _usage(self) -> bytes:
        return b',"usage":' + self._encoder.encode(usage_reply(self._generation.usage))

    def _timings(self) -> bytes:
        return b',"timings":' + self._encoder.encode(timings(self._generation))
