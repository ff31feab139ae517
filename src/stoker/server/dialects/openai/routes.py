"""OpenAI's chat completions and completions: who is called in which order, and nothing else."""

from __future__ import annotations

import asyncio
import uuid

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from stoker.engine.protocol import Tokenize
from stoker.runtime.registry import Registry
from stoker.server.answer import Asked, answer
from stoker.server.config import ServerConfig
from stoker.server.dialects.openai.fields import (
    CHAT_COMPLETIONS,
    CHAT_FIELDS,
    CHAT_INPUT_TOKENS,
    CHAT_PROMPT_FIELDS,
    COMPLETION_FIELDS,
    COMPLETIONS,
    STREAM_NESTED,
)
from stoker.server.dialects.openai.requests import chat_prompt, chat_request, completion_request
from stoker.server.dialects.openai.types import (
    ChatCompletionRequest,
    ChatPromptRequest,
    CompletionRequest,
    InputTokens,
    StreamOptions,
)
from stoker.server.dialects.openai.writer import ChatWriter, CompletionWriter
from stoker.server.errors import json_response
from stoker.server.fields import decode_request
from stoker.server.leasing import leased
from stoker.server.observe.account import account_of
from stoker.server.request.request import Caller
from stoker.server.routing import routes_of
from stoker.server.transport.connection import read_body, while_connected
from stoker.server.transport.sse import EventStream


class OpenAIRoutes:
    """The generating endpoints of the OpenAI API that keep no state."""

    def __init__(self, registry: Registry, config: ServerConfig) -> None:
        self._registry = registry
        self._config = config

    def routes(self) -> list[BaseRoute]:
        return [
            *routes_of(CHAT_INPUT_TOKENS, self.chat_input_tokens),
            *routes_of(CHAT_COMPLETIONS, self.chat_completions),
            *routes_of(COMPLETIONS, self.completions),
        ]

    async def chat_completions(self, request: Request) -> Response | EventStream:
        body = await read_body(request, self._config)
        wire = decode_request(body, CHAT_FIELDS, ChatCompletionRequest, STREAM_NESTED)
        served = await leased(request, self._registry, wire.model)
        # A template may compute for seconds; the streams of the others must not wait for it.
        asked = await asyncio.to_thread(
            chat_request, wire, served.runtime, caller_of(request, "chatcmpl"), self._config
        )
        asking, options = Asked(request, self._config, served, asked), _stream_options(wire)
        return await answer(
            asking, lambda generation: ChatWriter(asking, generation, options), is_stream=bool(wire.stream)
        )

    async def chat_input_tokens(self, request: Request) -> Response:
        body = await read_body(request, self._config)
        wire = decode_request(body, CHAT_PROMPT_FIELDS, ChatPromptRequest)
        runtime = (await leased(request, self._registry, wire.model)).runtime
        prompt = await asyncio.to_thread(chat_prompt, wire, runtime)
        tokens = await while_connected(request.receive, runtime.ask(Tokenize(prompt)))
        return json_response(InputTokens(len(tokens.token_ids)))

    async def completions(self, request: Request) -> Response | EventStream:
        body = await read_body(request, self._config)
        wire = decode_request(body, COMPLETION_FIELDS, CompletionRequest, STREAM_NESTED)
        served = await leased(request, self._registry, wire.model)
        asked = completion_request(wire, served.runtime.card, caller_of(request, "cmpl"), self._config)
        asking, options = Asked(request, self._config, served, asked), _stream_options(wire)
        has_logprobs = wire.logprobs is not None
        return await answer(
            asking,
            lambda generation: CompletionWriter(asking, generation, options, has_logprobs=has_logprobs),
            is_stream=bool(wire.stream),
        )


def _stream_options(wire: ChatCompletionRequest | CompletionRequest) -> StreamOptions | None:
    return (wire.stream_options or StreamOptions()) if wire.stream else None


def caller_of(request: Request, prefix: str, separator: str = "-") -> Caller:
    """Who asks, and a new id for the reply."""
    address = request.client.host if request.client else ""
    return Caller(f"{prefix}{separator}{uuid.uuid4().hex}", address, account_of(request.scope))
