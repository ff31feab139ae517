"""`POST /v1/messages` and `/v1/messages/count_tokens`: who is called in which order, and nothing else."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from stoker.engine.protocol import Tokenize
from stoker.runtime.registry import Registry
from stoker.server.answer import Asked, answer
from stoker.server.config import ServerConfig
from stoker.server.dialects.anthropic.fields import (
    COUNT_TOKENS,
    COUNT_TOKENS_FIELDS,
    MESSAGES,
    MESSAGES_FIELDS,
    MESSAGES_NESTED,
)
from stoker.server.dialects.anthropic.requests import message_request, render
from stoker.server.dialects.anthropic.types import CountTokensRequest, MessagesRequest, TokenCount
from stoker.server.dialects.anthropic.writer import AnthropicWriter
from stoker.server.dialects.openai.routes import caller_of
from stoker.server.errors import json_response
from stoker.server.fields import decode_request
from stoker.server.leasing import leased
from stoker.server.routing import routes_of
from stoker.server.transport.connection import read_body, while_connected
from stoker.server.transport.sse import EventStream


class AnthropicRoutes:
    """The messages endpoints of the Anthropic API."""

    def __init__(self, registry: Registry, config: ServerConfig) -> None:
        self._registry = registry
        self._config = config

    def routes(self) -> list[BaseRoute]:
        return [*routes_of(MESSAGES, self.messages), *routes_of(COUNT_TOKENS, self.count_tokens)]

    async def messages(self, request: Request) -> Response | EventStream:
        body = await read_body(request, self._config)
        wire = decode_request(body, MESSAGES_FIELDS, MessagesRequest, MESSAGES_NESTED)
        served = await leased(request, self._registry, wire.model)
        caller = caller_of(request, "msg", "_")
        # A template may compute for seconds; the streams of the others must not wait for it.
        asked = await asyncio.to_thread(message_request, wire, served.runtime, caller, self._config)
        asking = Asked(request, self._config, served, asked)
        omits_thinking = wire.thinking is not None and wire.thinking.display == "omitted"
        return await answer(
            asking, lambda _: AnthropicWriter(asking, omits_thinking=omits_thinking), is_stream=bool(wire.stream)
        )

    async def count_tokens(self, request: Request) -> Response:
        body = await read_body(request, self._config)
        wire = decode_request(body, COUNT_TOKENS_FIELDS, CountTokensRequest, MESSAGES_NESTED)
        runtime = (await leased(request, self._registry, wire.model)).runtime
        prompt = await asyncio.to_thread(render, wire, runtime)
        tokenized = await while_connected(request.receive, runtime.ask(Tokenize(prompt)))
        return json_response(TokenCount(len(tokenized.token_ids)))
