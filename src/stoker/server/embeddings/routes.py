"""The endpoints for embeddings and reranking of all APIs. The handlers only call other modules, in order."""

from __future__ import annotations

import time
from typing import Any, TypeAlias

import msgspec
from starlette.responses import Response

from stoker.engine.question_messages import Embed, Embedded
from stoker.runtime.registry import ServedModel
from stoker.server.api import Call, Router
from stoker.server.dialects.ollama.names import own_name
from stoker.server.dialects.ollama.requests import keep_alive_of
from stoker.server.embeddings.requests import (
    embeddings_reply,
    embeddings_request,
    native_embedding_reply,
    native_embedding_request,
    native_inputs,
    ollama_embed_reply,
    ollama_embed_request,
    plain_inputs,
    rerank_reply,
    rerank_request,
)
from stoker.server.embeddings.types import (
    EMBEDDINGS_FIELDS,
    NATIVE_EMBEDDING_FIELDS,
    OLLAMA_EMBED_FIELDS,
    OLLAMA_EMBEDDINGS_FIELDS,
    RERANK_FIELDS,
    EmbeddingList,
    EmbeddingsRequest,
    NativeEmbedding,
    NativeEmbeddingRequest,
    OllamaEmbeddingsReply,
    OllamaEmbeddingsRequest,
    OllamaEmbedReply,
    OllamaEmbedRequest,
    RankedScore,
    RankList,
    RerankRequest,
)
from stoker.server.error_types import OllamaError
from stoker.server.errors import json_response
from stoker.server.models.local_models import LocalModels
from stoker.server.observe.account import account_of
from stoker.server.request.adapters import with_named_adapter

openai = Router(api="OpenAI")
native = Router(api="native")
rerank = Router(api="Rerank")
ollama = Router(api="Ollama", error=OllamaError)

_OllamaCall: TypeAlias = Call[OllamaEmbedRequest] | Call[OllamaEmbeddingsRequest]


@openai.endpoint(
    "POST",
    "/v1/embeddings",
    "Embeds texts.",
    aliases=("/embeddings",),
    body=EmbeddingsRequest,
    fields=EMBEDDINGS_FIELDS,
    reply=EmbeddingList,
)
async def embeddings(call: Call[EmbeddingsRequest]) -> Response:
    wire = call.body
    served = await call.lease(wire.model)
    given = await call.wait(plain_inputs(wire.input, "input", served.runtime))
    asked = embeddings_request(wire, given, call.caller("embd"), call.config)
    embedded = await _ask(call, served, wire.model, asked)
    return await call.off_loop(lambda: json_response(embeddings_reply(wire, served.model_id, embedded)))


@native.endpoint(
    "POST",
    "/embedding",
    "Computes embeddings, with the fields of llama-server.",
    body=NativeEmbeddingRequest,
    fields=NATIVE_EMBEDDING_FIELDS,
    reply=list[NativeEmbedding],
)
async def native_embedding(call: Call[NativeEmbeddingRequest]) -> Response:
    wire = call.body
    served = await call.lease(wire.model)
    name, inputs = native_inputs(wire)
    given = await call.wait(plain_inputs(inputs, name, served.runtime))
    asked = native_embedding_request(wire, given, call.caller("embd"), call.config)
    embedded = await _ask(call, served, wire.model, asked)
    return await call.off_loop(lambda: json_response(native_embedding_reply(embedded)))


@rerank.endpoint(
    "POST",
    "/v1/rerank",
    "Reranks texts by their relevance to a query, with the fields of Jina and Cohere.",
    aliases=("/rerank", "/v2/rerank", "/v1/reranking", "/reranking"),
    body=RerankRequest,
    fields=RERANK_FIELDS,
    reply=RankList | list[RankedScore],
)
async def rank(call: Call[RerankRequest]) -> Response:
    wire = call.body
    served = await call.lease(wire.model)
    caller = call.caller("rerank")
    embedded = await _ask(call, served, wire.model, rerank_request(wire, caller, call.config))
    return json_response(rerank_reply(wire, served.model_id, caller.reply_id, embedded))


@ollama.endpoint(
    "POST",
    "/api/embed",
    "Embeds texts.",
    body=OllamaEmbedRequest,
    fields=OLLAMA_EMBED_FIELDS,
    reply=OllamaEmbedReply,
)
async def ollama_embed(call: Call[OllamaEmbedRequest]) -> Response:
    served = await _ollama_served(call)
    loaded_s = time.monotonic()
    embedded = await _ask_ollama(call, served)
    total_s, load_s = time.monotonic() - call.begun_s, loaded_s - call.begun_s
    name = call.body.model or served.model_id
    return await call.off_loop(lambda: json_response(ollama_embed_reply(name, embedded, total_s, load_s)))


@ollama.endpoint(
    "POST",
    "/api/embeddings",
    "Computes the embedding of one text, as in older versions of Ollama.",
    body=OllamaEmbeddingsRequest,
    fields=OLLAMA_EMBEDDINGS_FIELDS,
    reply=OllamaEmbeddingsReply,
)
async def ollama_embeddings(call: Call[OllamaEmbeddingsRequest]) -> Response:
    embedded = await _ask_ollama(call, await _ollama_served(call))
    return json_response(OllamaEmbeddingsReply([] if embedded is None else embedded.rows()[0].tolist()))


async def _ollama_served(call: _OllamaCall) -> ServedModel:
    served = await call.lease(_ollama_name(call), keep_alive_of(call.body.keep_alive))
    _ = served.runtime.card  # raises ModelNotLoaded until the model is loaded
    return served


async def _ask_ollama(call: _OllamaCall, served: ServedModel) -> Embedded | None:
    asked = ollama_embed_request(call.body, call.caller("embd"), call.config)
    return None if asked is None else await _ask(call, served, _ollama_name(call), asked)


def _ollama_name(call: _OllamaCall) -> str:
    return LocalModels(call.registry).registered_name(own_name(call.body.model or ""))


async def _ask(call: Call[Any], served: ServedModel, model: str | None, asked: Embed) -> Embedded:
    asked = msgspec.structs.replace(asked, adapters=with_named_adapter(asked.adapters, model, served))
    account = account_of(call.request.scope)
    account.model = served.model_id
    with served.metrics.embedding(account.key_name) as count:
        embedded = await call.wait(served.runtime.ask(asked))
        account.prompt_tokens = count.num_tokens = sum(embedded.num_tokens)
    return embedded
