"""The tables that say what becomes of every known field of requests for embeddings and ranks; they do nothing."""

from __future__ import annotations

from stoker.server.embeddings.types import (
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
from stoker.server.fields import Endpoint, FieldTable, Ignored, Refused, honoured

_WHOLE = "a text is embedded as a whole: cut it yourself, or ask for `truncate`"
_FRAMED = "a text always gets the tokens that the model wants around it: send token ids to do it yourself"

_SHARED: FieldTable = {
    "truncate_prompt_tokens": Refused(_WHOLE),
    "add_special_tokens": Refused(_FRAMED, (True,)),
    "service_tier": Ignored("there is one tier"),
}
_RERANK: FieldTable = {
    "rank_fields": Refused("of a document that is an object, `text` is ranked", (["text"], [])),
    "max_tokens_per_doc": Refused(_WHOLE),
    "max_chunks_per_doc": Refused(_WHOLE, (1,)),
    "return_embeddings": Refused("a reranking model has no embeddings", (False,)),
}
_OLLAMA: FieldTable = {"options": Ignored("they are about answers, and about how a model is loaded")}

EMBEDDINGS_FIELDS: FieldTable = honoured(EmbeddingsRequest, _SHARED)
NATIVE_EMBEDDING_FIELDS: FieldTable = honoured(NativeEmbeddingRequest, _SHARED)
RERANK_FIELDS: FieldTable = honoured(RerankRequest, _SHARED, _RERANK)
OLLAMA_EMBED_FIELDS: FieldTable = honoured(OllamaEmbedRequest, _OLLAMA)
OLLAMA_EMBEDDINGS_FIELDS: FieldTable = honoured(OllamaEmbeddingsRequest, _OLLAMA)

EMBEDDINGS = Endpoint(
    api="OpenAI",
    method="POST",
    path="/v1/embeddings",
    aliases=("/embeddings",),
    summary="Embeds texts.",
    request=EmbeddingsRequest,
    fields=EMBEDDINGS_FIELDS,
    reply=EmbeddingList,
)
NATIVE_EMBEDDING = Endpoint(
    api="native",
    method="POST",
    path="/embedding",
    summary="Embeds texts, in llama-server's own words.",
    request=NativeEmbeddingRequest,
    fields=NATIVE_EMBEDDING_FIELDS,
    reply=list[NativeEmbedding],
)
RERANK = Endpoint(
    api="Rerank",
    method="POST",
    path="/v1/rerank",
    aliases=("/rerank", "/v2/rerank", "/v1/reranking", "/reranking"),
    summary="Sorts texts by how well they answer a query, in Jina's and Cohere's shape.",
    request=RerankRequest,
    fields=RERANK_FIELDS,
    reply=RankList | list[RankedScore],
)
OLLAMA_EMBED = Endpoint(
    api="Ollama",
    method="POST",
    path="/api/embed",
    summary="Embeds texts.",
    request=OllamaEmbedRequest,
    fields=OLLAMA_EMBED_FIELDS,
    reply=OllamaEmbedReply,
    error=OllamaError,
)
OLLAMA_EMBEDDINGS = Endpoint(
    api="Ollama",
    method="POST",
    path="/api/embeddings",
    summary="Embeds one text, as in older versions.",
    request=OllamaEmbeddingsRequest,
    fields=OLLAMA_EMBEDDINGS_FIELDS,
    reply=OllamaEmbeddingsReply,
    error=OllamaError,
)

ENDPOINTS = (EMBEDDINGS, NATIVE_EMBEDDING, RERANK, OLLAMA_EMBED, OLLAMA_EMBEDDINGS)
