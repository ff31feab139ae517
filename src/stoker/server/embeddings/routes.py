"""Embeddings and ranks, in every dialect: who is called in which order, and nothing else."""

from __future__ import annotations

import asyncio
import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from stoker.engine.protocol import Embed, Embedded
from stoker.runtime.registry import Registry, ServedModel
from stoker.server.config import ServerConfig
from stoker.server.dialects.ollama.local_models import LocalModels
from stoker.server.dialects.ollama.names import own_name
from stoker.server.dialects.ollama.requests import keep_alive_of
from stoker.server.dialects.openai.routes import caller_of
from stoker.server.embeddings.fields import (
    EMBEDDINGS,
    EMBEDDINGS_FIELDS,
    NATIVE_EMBEDDING,
    NATIVE_EMBEDDING_FIELDS,
    OLLAMA_EMBED,
    OLLAMA_EMBED_FIELDS,
    OLLAMA_EMBEDDINGS,
    OLLAMA_EMBEDDINGS_FIELDS,
    RERANK,
    RERANK_FIELDS,
)
from stoker.server.embeddings.requests import (
    embeddings_reply,
    embeddings_request,
    native_embedding_reply,
    native_embedding_request,
    ollama_embed_reply,
    ollama_embed_request,
    rerank_reply,
    rerank_request,
)
from stoker.server.embeddings.types import (
    EmbeddingsRequest,
    NativeEmbeddingRequest,
    OllamaEmbeddingsReply,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    RerankRequest,
)
from stoker.server.errors import json_response
from stoker.server.fields import decode_request
from stoker.server.leasing import leased
from stoker.server.observe.account import account_of
from stoker.server.request.adapters import with_named_adapter
from stoker.server.routing import routes_of
from stoker.server.transport.connection import read_body, while_connected


class EmbeddingRoutes:
    """`/v1/embeddings`, `/v1/rerank`, `/embedding`, `/api/embed`, `/api/embeddings`."""

    def __init__(self, registry: Registry, config: ServerConfig) -> None:
        self._registry = registry
        self._models = LocalModels(registry)
        self._config = config

    def routes(self) -> list[BaseRoute]:
        return [
            *routes_of(EMBEDDINGS, self.embeddings),
            *routes_of(NATIVE_EMBEDDING, self.native),
            *routes_of(RERANK, self.rerank),
            *routes_of(OLLAMA_EMBED, self.ollama_embed),
            *routes_of(OLLAMA_EMBEDDINGS, self.ollama_embeddings),
        ]

    async def embeddings(self, request: Request) -> Response:
        wire = decode_request(await read_body(request, self._config), EMBEDDINGS_FIELDS, EmbeddingsRequest)
        served = await leased(request, self._registry, wire.model)
        embedded = await _ask(
            request, served, wire.model, embeddings_request(wire, caller_of(request, "embd"), self._config)
        )
        # Millions of numbers take a while to write; the streams of the others must not wait for it.
        return await asyncio.to_thread(lambda: json_response(embeddings_reply(wire, served.model_id, embedded)))

    async def native(self, request: Request) -> Response:
        body = await read_body(request, self._config)
        wire = decode_request(body, NATIVE_EMBEDDING_FIELDS, NativeEmbeddingRequest)
        served = await leased(request, self._registry, wire.model)
        asked = native_embedding_request(wire, caller_of(request, "embd"), self._config)
        embedded = await _ask(request, served, wire.model, asked)
        return await asyncio.to_thread(lambda: json_response(native_embedding_reply(embedded)))

    async def rerank(self, request: Request) -> Response:
        wire = decode_request(await read_body(request, self._config), RERANK_FIELDS, RerankRequest)
        served = await leased(request, self._registry, wire.model)
        caller = caller_of(request, "rerank")
        embedded = await _ask(request, served, wire.model, rerank_request(wire, caller, self._config))
        return json_response(rerank_reply(wire, served.model_id, caller.reply_id, embedded))

    async def ollama_embed(self, request: Request) -> Response:
        begun_s = time.monotonic()
        wire = decode_request(await read_body(request, self._config), OLLAMA_EMBED_FIELDS, OllamaEmbedRequest)
        served = await self._ollama_served(request, wire)
        loaded_s = time.monotonic()
        asked = ollama_embed_request(wire, caller_of(request, "embd"), self._config)
        embedded = None if asked is None else await _ask(request, served, self._ollama_name(wire), asked)
        total_s, load_s = time.monotonic() - begun_s, loaded_s - begun_s
        name = wire.model or served.model_id
        return await asyncio.to_thread(lambda: json_response(ollama_embed_reply(name, embedded, total_s, load_s)))

    async def ollama_embeddings(self, request: Request) -> Response:
        body = await read_body(request, self._config)
        wire = decode_request(body, OLLAMA_EMBEDDINGS_FIELDS, OllamaEmbeddingsRequest)
        served = await self._ollama_served(request, wire)
        asked = ollama_embed_request(wire, caller_of(request, "embd"), self._config)
        embedded = None if asked is None else await _ask(request, served, self._ollama_name(wire), asked)
        return json_response(OllamaEmbeddingsReply([] if embedded is None else embedded.rows()[0].tolist()))

    async def _ollama_served(self, request: Request, wire: OllamaEmbedRequest | OllamaEmbeddingsRequest) -> ServedModel:
        keep_alive_s = keep_alive_of(wire.keep_alive)
        served = await leased(request, self._registry, self._ollama_name(wire), keep_alive_s)
        _ = served.runtime.card  # not before it is loaded
        return served

    def _ollama_name(self, wire: OllamaEmbedRequest | OllamaEmbeddingsRequest) -> str:
        return self._models.registered_name(own_name(wire.model or ""))


async def _ask(request: Request, served: ServedModel, model: str | None, asked: Embed) -> Embedded:
    asked = msgspec.structs.replace(asked, adapters=with_named_adapter(asked.adapters, model, served))
    account = account_of(request.scope)
    account.model = served.model_id
    with served.metrics.embedding(account.key_name) as count:
        embedded = await while_connected(request.receive, served.runtime.ask(asked))
        account.prompt_tokens = count.num_tokens = sum(embedded.num_tokens)
    return embedded
