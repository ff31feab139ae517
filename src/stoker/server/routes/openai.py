"""`POST /v1/chat/completions` and `/v1/completions`: who is called in which order, and nothing else."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from stoker.engine.protocol import Submit
from stoker.runtime.registry import Registry, ServedModel
from stoker.server.config import ServerConfig
from stoker.server.connection import read_body, while_connected
from stoker.server.errors import json_response
from stoker.server.generation import Generation
from stoker.server.sse import EventStream
from stoker.server.translate.openai import Caller, chat_submits, completion_submits
from stoker.server.translate.openai_reply import ChatShape, ChunkT, CompletionShape, ReplyShape, reply_head, whole_reply
from stoker.server.translate.openai_stream import OpenAIStream
from stoker.server.wire.fields import decode_request
from stoker.server.wire.openai import (
    ChatCompletionRequest,
    CompletionRequest,
    GenerationRequest,
    ReplyChoices,
    StreamOptions,
)
from stoker.server.wire.openai_fields import CHAT_FIELDS, COMPLETION_FIELDS


class OpenAIRoutes:
    """The generating endpoints of the OpenAI API."""

    def __init__(self, registry: Registry, config: ServerConfig) -> None:
        self._registry = registry
        self._config = config

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/v1/chat/completions", self.chat_completions, methods=["POST"]),
            Route("/v1/completions", self.completions, methods=["POST"]),
        ]

    async def chat_completions(self, request: Request) -> Response | EventStream:
        body = await read_body(request, self._config)
        wire = decode_request(body, CHAT_FIELDS, ChatCompletionRequest)
        served = self._registry.resolve(wire.model)
        caller = _caller("chatcmpl", request)
        # A template may compute for seconds; the streams of the others must not wait for it.
        submits = await asyncio.to_thread(chat_submits, wire, served.runtime, caller, self._config)
        return await self._answer(request, wire, served, caller.reply_id, submits, ChatShape())

    async def completions(self, request: Request) -> Response | EventStream:
        body = await read_body(request, self._config)
        wire = decode_request(body, COMPLETION_FIELDS, CompletionRequest)
        served = self._registry.resolve(wire.model)
        caller = _caller("cmpl", request)
        submits = completion_submits(wire, caller, self._config)
        prefixes = [str(submit.prompt) if wire.echo else "" for submit in submits]
        return await self._answer(request, wire, served, caller.reply_id, submits, CompletionShape(prefixes))

    async def _answer(
        self,
        request: Request,
        wire: GenerationRequest,
        served: ServedModel,
        reply_id: str,
        submits: Sequence[Submit],
        shape: ReplyShape[ChunkT],
    ) -> Response | EventStream:
        """Everything that can be refused is refused in here, before a response begins."""
        object_name = shape.chunk_object if wire.stream else shape.reply_object
        head = reply_head(reply_id, object_name, served, int(time.time()))
        opening = Generation.open(served.runtime, submits, choices_per_prompt=wire.n or 1)
        generation = await while_connected(request.receive, opening)
        if wire.stream:
            stream = OpenAIStream(head, shape, generation, wire.stream_options or StreamOptions())
            return EventStream(stream.events(), generation.close, self._config)
        async with generation:
            choices = await while_connected(request.receive, _collect(generation, shape))
        return json_response(whole_reply(head, choices, generation))


async def _collect(generation: Generation, shape: ReplyShape[ChunkT]) -> ReplyChoices:
    return shape.fold([chunk async for index, output in generation for chunk in shape.push(index, output)])


def _caller(prefix: str, request: Request) -> Caller:
    return Caller(f"{prefix}-{uuid.uuid4().hex}", request.client.host if request.client else "")
