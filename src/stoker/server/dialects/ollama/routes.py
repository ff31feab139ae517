"""Ollama's endpoints that write text: who is called in which order, and nothing else."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute

from stoker.engine.protocol import Tokenize
from stoker.errors import InvalidInput
from stoker.runtime.registry import Registry, ServedModel
from stoker.server.access.control import check_admin
from stoker.server.answer import Asked, answer
from stoker.server.config import ServerConfig
from stoker.server.dialects.ollama.fields import CHAT, CHAT_FIELDS, GENERATE, GENERATE_FIELDS, ROOT
from stoker.server.dialects.ollama.local_models import LocalModels
from stoker.server.dialects.ollama.names import own_name
from stoker.server.dialects.ollama.requests import (
    answer_request,
    is_load,
    is_unload,
    keep_alive_of,
    render_chat,
    render_generate,
)
from stoker.server.dialects.ollama.types import ChatRequest, GenerateRequest
from stoker.server.dialects.ollama.writer import MakeReply, OllamaWriter, chat_reply, generate_reply, load_reply
from stoker.server.dialects.openai.routes import caller_of
from stoker.server.errors import json_response
from stoker.server.fields import decode_request
from stoker.server.generation import GenerationRequest
from stoker.server.leasing import leased
from stoker.server.request.request import Caller
from stoker.server.routing import routes_of
from stoker.server.transport.connection import read_body, while_connected
from stoker.server.transport.sse import EventStream


class OllamaRoutes:
    """`POST /api/generate`, `POST /api/chat`, and the probe at `/`."""

    def __init__(self, registry: Registry, config: ServerConfig) -> None:
        self._registry = registry
        self._models = LocalModels(registry)
        self._config = config

    def routes(self) -> list[BaseRoute]:
        return [*routes_of(GENERATE, self.generate), *routes_of(CHAT, self.chat), *routes_of(ROOT, self.root)]

    async def root(self, _request: Request) -> Response:
        return PlainTextResponse("Ollama is running")

    async def generate(self, request: Request) -> Response | EventStream:
        begun_s = time.monotonic()
        body = await read_body(request, self._config)
        wire = decode_request(body, GENERATE_FIELDS, GenerateRequest)
        if is_unload(wire):
            return await self._unload(request, wire, generate_reply)
        served = await self._served(request, wire)
        if is_load(wire):
            return _loaded(wire, served, generate_reply)
        rendered = await asyncio.to_thread(render_generate, wire, served.runtime)
        prompt_ids = None
        if not wire.raw and isinstance(rendered.prompt, str):
            tokenizing = served.runtime.ask(Tokenize(rendered.prompt, wants_bos=not wire.context))
            tokenized = await while_connected(request.receive, tokenizing)
            prompt_ids = [*(wire.context or ()), *tokenized.token_ids]
            rendered = replace(rendered, prompt=prompt_ids)
        asked = answer_request(wire, rendered, caller_of(request, "ollama"), self._config)
        return await answer(
            Asked(request, self._config, served, self._named(asked, wire)),
            lambda generation: OllamaWriter(generate_reply, _name(wire, served), generation, begun_s, prompt_ids),
            is_stream=wire.stream is not False,
        )

    async def chat(self, request: Request) -> Response | EventStream:
        begun_s = time.monotonic()
        body = await read_body(request, self._config)
        wire = decode_request(body, CHAT_FIELDS, ChatRequest)
        if is_unload(wire):
            return await self._unload(request, wire, chat_reply)
        served = await self._served(request, wire)
        if is_load(wire):
            return _loaded(wire, served, chat_reply)
        asked = await asyncio.to_thread(self._chat_request, wire, served, caller_of(request, "ollama"))
        return await answer(
            Asked(request, self._config, served, self._named(asked, wire)),
            lambda generation: OllamaWriter(chat_reply, _name(wire, served), generation, begun_s),
            is_stream=wire.stream is not False,
        )

    def _chat_request(self, wire: ChatRequest, served: ServedModel, caller: Caller) -> GenerationRequest:
        return answer_request(wire, render_chat(wire, served.runtime), caller, self._config)

    async def _served(self, request: Request, wire: GenerateRequest | ChatRequest) -> ServedModel:
        keep_alive_s = keep_alive_of(wire.keep_alive)
        return await leased(request, self._registry, self._name(wire), keep_alive_s)

    async def _unload(self, request: Request, wire: GenerateRequest | ChatRequest, make: MakeReply) -> Response:
        """Requests that run may end; one that is pinned stays, and says so."""
        check_admin(request.scope)
        status = self._registry.resolve(self._name(wire))
        if status.spec.is_pinned:
            message = f"`keep_alive` of 0: the model '{status.model_id}' is pinned and stays loaded"
            raise InvalidInput(message, parameter="keep_alive")
        await self._registry.unload(status.model_id)
        return json_response(load_reply(make, wire.model or status.model_id, "unload"))

    def _named(self, asked: GenerationRequest, wire: GenerateRequest | ChatRequest) -> GenerationRequest:
        """What was copied from a model with an adapter asks for that adapter."""
        return replace(asked, model=self._name(wire))

    def _name(self, wire: GenerateRequest | ChatRequest) -> str:
        return self._models.registered_name(own_name(wire.model or ""))


def _loaded(wire: GenerateRequest | ChatRequest, served: ServedModel, make: MakeReply) -> Response:
    _ = served.runtime.card  # not before it is
    return json_response(load_reply(make, _name(wire, served)))


def _name(wire: GenerateRequest | ChatRequest, served: ServedModel) -> str:
    """Ollama's clients expect the name that they sent."""
    return wire.model or served.model_id
