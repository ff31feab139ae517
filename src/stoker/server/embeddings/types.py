"""The JSON types of embeddings and reranking, as in the APIs of OpenAI, Jina, Cohere, Ollama and llama-server.

The tables honor, refuse or ignore each field. In requests `None` means "not given".
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from stoker.server.fields import FieldTable, Ignored, Refused, honoured
from stoker.server.request.fields import Int, Lora


class TextPart(msgspec.Struct, frozen=True):
    """A part of an input, in the shape of a message's part."""

    type: str
    text: str | None = None


class InputText(msgspec.Struct, frozen=True, kw_only=True):
    """An input as an object, with a `prompt_string` or with `content`."""

    prompt_string: str | None = None
    content: list[TextPart] | None = None
    """Parts of the input; all must be texts."""


PlainInputs: TypeAlias = str | list[str | Int | list[Int]]
"""A text, a list of token ids, or a list of texts and of lists of token ids."""
Inputs: TypeAlias = str | InputText | list[str | Int | InputText | list[Int | str]]
"""`PlainInputs`, and also texts mixed with token ids, and texts as objects."""


class PassFields(msgspec.Struct, frozen=True, kw_only=True):
    """Common fields of all requests for embeddings, except Ollama's."""

    model: str | None = None
    user: str | None = None
    """Name of the user: without an API key, all requests of one user get one fair share of the machine."""
    priority: Int | None = None
    timeout: float | None = None
    """Maximum time for the answer, in seconds."""
    truncate: bool | str | None = None
    """True or `END`: the end of an input that is too long is cut off; false or `NONE`: the input is refused."""
    lora: Lora | None = None
    """Only the empty list is supported, which means the model without adapters."""


class EmbeddingsRequest(PassFields, frozen=True, kw_only=True):
    """The body of `POST /v1/embeddings`."""

    input: Inputs | None = None
    encoding_format: str | None = None
    """`float`, or `base64` of the numbers as 4 bytes each, little-endian."""
    dimensions: Int | None = None
    """Number of dimensions of each embedding to keep."""


class NativeEmbeddingRequest(PassFields, frozen=True, kw_only=True):
    """The body of `POST /embedding`."""

    content: Inputs | None = None
    """The inputs; `input` means the same."""
    input: Inputs | None = None
    embd_normalize: Int | None = None
    """Normalization: -1 = none, 0 = the largest number becomes 32760, 1 = taxicab norm, 2 = Euclidean norm (default),
    p = p-norm."""


class RankedText(msgspec.Struct, frozen=True):
    """A document as an object; its other members are ignored."""

    text: str


class RerankRequest(PassFields, frozen=True, kw_only=True):
    """The body of `POST /v1/rerank`."""

    query: str | None = None
    documents: list[str | RankedText] | None = None
    texts: list[str] | None = None
    """Name of `documents` in Text Embeddings Inference; the reply is then a bare list, as there."""
    top_n: Int | None = None
    """Number of the best documents to return."""
    return_documents: bool | None = None
    return_text: bool | None = None
    """Name of `return_documents` in Text Embeddings Inference."""
    raw_scores: bool | None = None
    """True: scores are the unscaled outputs of the model's classifier, instead of numbers between 0 and 1."""


class OllamaEmbedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /api/embed`."""

    model: str | None = None
    input: str | list[str] | None = None
    truncate: bool | None = None
    """Not given = true."""
    dimensions: Int | None = None
    keep_alive: str | float | None = None


class OllamaEmbeddingsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /api/embeddings`."""

    model: str | None = None
    prompt: str | None = None
    keep_alive: str | float | None = None


# Policies of the fields

_WHOLE = "a text is embedded as a whole: cut it yourself, or ask for `truncate`"
_FRAMED = "a text always gets the tokens that the model wants around it: send token ids to do it yourself"

_SHARED: FieldTable = {
    "truncate_prompt_tokens": Refused(_WHOLE),
    "add_special_tokens": Refused(_FRAMED, (True,)),
    "service_tier": Ignored("there is one tier"),
}
_RERANK: FieldTable = {
    "rank_fields": Refused("only the `text` of a document is ranked", (["text"], [])),
    "max_tokens_per_doc": Refused(_WHOLE),
    "max_chunks_per_doc": Refused(_WHOLE, (1,)),
    "return_embeddings": Refused("a reranking model has no embeddings", (False,)),
}
_OLLAMA: FieldTable = {"options": Ignored("these options concern generation and loading")}

EMBEDDINGS_FIELDS: FieldTable = honoured(EmbeddingsRequest, _SHARED)
NATIVE_EMBEDDING_FIELDS: FieldTable = honoured(NativeEmbeddingRequest, _SHARED)
RERANK_FIELDS: FieldTable = honoured(RerankRequest, _SHARED, _RERANK)
OLLAMA_EMBED_FIELDS: FieldTable = honoured(OllamaEmbedRequest, _OLLAMA)
OLLAMA_EMBEDDINGS_FIELDS: FieldTable = honoured(OllamaEmbeddingsRequest, _OLLAMA)

# Replies


class EmbeddingUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    total_tokens: int


class EmbeddingEntry(msgspec.Struct, frozen=True, kw_only=True):
    object: str = "embedding"
    index: int
    embedding: list[float] | str
    """Numbers, or a text if `encoding_format` is `base64`."""


class EmbeddingList(msgspec.Struct, frozen=True, kw_only=True):
    object: str = "list"
    data: list[EmbeddingEntry]
    """Embeddings in the order of the inputs."""
    model: str
    usage: EmbeddingUsage


class NativeEmbedding(msgspec.Struct, frozen=True):
    index: int
    embedding: list[list[float]]
    """A list with the one embedding of the input."""


class RankEntry(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    """Index of the document in the request."""
    relevance_score: float
    document: RankedText | UnsetType = UNSET


class RankList(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "list"
    model: str
    results: list[RankEntry]
    """Documents with their scores, the best first."""
    usage: EmbeddingUsage


class RankedScore(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    score: float
    text: str | UnsetType = UNSET


class OllamaEmbedReply(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    embeddings: list[list[float]]
    total_duration: int
    """Total time, in nanoseconds."""
    load_duration: int
    prompt_eval_count: int


class OllamaEmbeddingsReply(msgspec.Struct, frozen=True):
    embedding: list[float]
