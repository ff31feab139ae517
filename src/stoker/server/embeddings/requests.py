"""Converts requests for embeddings and reranking to the engine's `Embed`, and its results to replies."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import cast

from msgspec import UNSET

from stoker.engine.question_messages import Embed, Embedded, Tokenize
from stoker.errors import InvalidInput
from stoker.runtime.base import Runtime
from stoker.server.config import ServerConfig
from stoker.server.embeddings.types import (
    EmbeddingEntry,
    EmbeddingList,
    EmbeddingsRequest,
    EmbeddingUsage,
    Inputs,
    InputText,
    NativeEmbedding,
    NativeEmbeddingRequest,
    OllamaEmbeddingsRequest,
    OllamaEmbedReply,
    OllamaEmbedRequest,
    PassFields,
    PlainInputs,
    RankedScore,
    RankedText,
    RankEntry,
    RankList,
    RerankRequest,
)
from stoker.server.request.adapters import adapter_choices
from stoker.server.request.request import Caller, priority, timeout_s

_MAX_NORM = 64


def embeddings_request(
    wire: EmbeddingsRequest, given: PlainInputs | None, caller: Caller, config: ServerConfig
) -> Embed:
    """Converts OpenAI's request for embeddings.

    Args:
        wire: the request.
        given: the inputs of the request, see `plain_inputs`.
        caller: the client.
        config: the settings of the server.

    Raises:
        InvalidInput: a field is missing or out of range.
    """
    if wire.encoding_format not in (None, "float", "base64"):
        message = f"`encoding_format` must be `float` or `base64`, not {wire.encoding_format[:40]!r}"
        raise InvalidInput(message, parameter="encoding_format")
    inputs = _inputs(given, "input", config)
    return _embed(inputs, wire, caller, config, parameter="input", dimensions=_dimensions(wire.dimensions))


def native_inputs(wire: NativeEmbeddingRequest) -> tuple[str, Inputs | None]:
    """The name and the value of the field with the inputs of llama-server's request.

    Raises:
        InvalidInput: `content` and `input` are both given and differ.
    """
    if None not in (wire.content, wire.input) and wire.content != wire.input:
        raise InvalidInput("conflicting values of equivalent fields: `content`, `input`", parameter="content")
    return ("content", wire.content) if wire.input is None else ("input", wire.input)


def native_embedding_request(
    wire: NativeEmbeddingRequest, given: PlainInputs | None, caller: Caller, config: ServerConfig
) -> Embed:
    """Converts llama-server's request for embeddings.

    Args:
        wire: the request.
        given: the inputs of the request, see `plain_inputs`.
        caller: the client.
        config: the settings of the server.

    Raises:
        InvalidInput: a field is missing or out of range.
    """
    norm = 2 if wire.embd_normalize is None else wire.embd_normalize
    if not -1 <= norm <= _MAX_NORM:
        raise InvalidInput(
            f"`embd_normalize` must be between -1 and {_MAX_NORM}, not {norm}", parameter="embd_normalize"
        )
    parameter, _ = native_inputs(wire)
    inputs = _inputs(given, parameter, config)
    return _embed(inputs, wire, caller, config, parameter=parameter, norm=norm)


def rerank_request(wire: RerankRequest, caller: Caller, config: ServerConfig) -> Embed:
    """Converts a request for reranking.

    Raises:
        InvalidInput: a field is missing, given twice, or out of range.
    """
    if wire.query is None:
        raise InvalidInput("`query` is missing", parameter="query")
    if wire.documents is not None and wire.texts is not None:
        raise InvalidInput("`documents` and `texts` mean the same: give one of them", parameter="texts")
    if wire.top_n is not None and wire.top_n < 1:
        raise InvalidInput(f"`top_n` must be at least 1, not {wire.top_n}", parameter="top_n")
    parameter = "documents" if wire.texts is None else "texts"
    texts = list(_documents(wire)) if (wire.documents, wire.texts) != (None, None) else None
    inputs = _inputs(cast("PlainInputs | None", texts), parameter, config)
    return _embed(inputs, wire, caller, config, parameter=parameter, query=wire.query)


def ollama_embed_request(
    wire: OllamaEmbedRequest | OllamaEmbeddingsRequest, caller: Caller, config: ServerConfig
) -> Embed | None:
    """Converts one of Ollama's requests for embeddings; None = the request only loads the model.

    Raises:
        InvalidInput: a field is out of range.
    """
    if isinstance(wire, OllamaEmbeddingsRequest):
        texts, parameter, truncates, dimensions = wire.prompt, "prompt", True, None
    else:
        texts, parameter, truncates = wire.input, "input", wire.truncate is not False
        dimensions = _dimensions(wire.dimensions or None)  # in Ollama 0 means "not given"
    if not texts:
        return None
    return Embed(
        _inputs(cast("PlainInputs", texts), parameter, config),
        dimensions=dimensions,
        truncates=truncates,
        client_key=caller.account.key_name or caller.address,
        timeout_s=config.request_timeout_s,
        parameter=parameter,
    )


def embeddings_reply(wire: EmbeddingsRequest, model: str, embedded: Embedded) -> EmbeddingList:
    rows = embedded.rows()
    found = [b64encode(row.tobytes()).decode() for row in rows] if wire.encoding_format == "base64" else rows.tolist()
    data = [EmbeddingEntry(index=index, embedding=embedding) for index, embedding in enumerate(found)]
    return EmbeddingList(data=data, model=model, usage=_usage(embedded))


def native_embedding_reply(embedded: Embedded) -> list[NativeEmbedding]:
    return [NativeEmbedding(index, [row]) for index, row in enumerate(embedded.rows().tolist())]


def rerank_reply(wire: RerankRequest, model: str, reply_id: str, embedded: Embedded) -> RankList | list[RankedScore]:
    """The ranked documents, the best first; of documents with equal scores, the earlier one first."""
    scores: list[float] = embedded.rows()[:, 0].tolist() if wire.raw_scores else embedded.relevance()
    best = sorted(range(len(scores)), key=lambda index: -scores[index])[: wire.top_n]
    documents = _documents(wire)
    if wire.texts is not None:
        texts = [documents[index] if wire.return_text else UNSET for index in best]
        return [RankedScore(index=i, score=scores[i], text=text) for i, text in zip(best, texts, strict=True)]
    results = [
        RankEntry(
            index=index,
            relevance_score=scores[index],
            document=RankedText(documents[index]) if wire.return_documents else UNSET,
        )
        for index in best
    ]
    return RankList(id=reply_id, model=model, results=results, usage=_usage(embedded))


def ollama_embed_reply(model: str, embedded: Embedded | None, total_s: float, load_s: float) -> OllamaEmbedReply:
    return OllamaEmbedReply(
        model=model,
        embeddings=[] if embedded is None else embedded.rows().tolist(),
        total_duration=round(1e9 * total_s),
        load_duration=round(1e9 * load_s),
        prompt_eval_count=0 if embedded is None else sum(embedded.num_tokens),
    )


def _truncates(asked: bool | str | None) -> bool:
    sides: dict[bool | str | None, bool] = {"NONE": False, "END": True, True: True, False: False, None: False}
    if asked not in sides:
        raise InvalidInput("`truncate` must be true, false, `END` or `NONE`", parameter="truncate")
    return sides[asked]


def _embed(
    inputs: list[str | list[int]],
    wire: PassFields,
    caller: Caller,
    config: ServerConfig,
    *,
    parameter: str,
    query: str | None = None,
    dimensions: int | None = None,
    norm: int = 2,
) -> Embed:
    return Embed(
        inputs,
        query=query,
        dimensions=dimensions,
        norm=norm,
        truncates=_truncates(wire.truncate),
        priority=priority(wire.priority, caller.account),
        client_key=caller.account.key_name or wire.user or caller.address,
        timeout_s=timeout_s(wire.timeout, config),
        parameter=parameter,
        adapters=adapter_choices(wire.lora),
    )


def _inputs(raw: PlainInputs | None, parameter: str, config: ServerConfig) -> list[str | list[int]]:
    if raw is None:
        raise InvalidInput(f"`{parameter}` is missing", parameter=parameter)
    if isinstance(raw, str):
        return [raw]
    if not raw:
        raise InvalidInput(f"`{parameter}` is an empty list", parameter=parameter)
    ids = [item for item in raw if isinstance(item, int)]
    if ids:
        return [ids]
    if len(raw) > config.max_inputs:
        message = f"`{parameter}` has {len(raw)} inputs; at most {config.max_inputs} are taken in one request"
        raise InvalidInput(message, parameter=parameter)
    return [item for item in raw if not isinstance(item, int)]


def _dimensions(asked: int | None) -> int | None:
    if asked is not None and not 1 <= asked < 2**31:
        raise InvalidInput(f"`dimensions` must be at least 1, not {asked}", parameter="dimensions")
    return asked


def _documents(wire: RerankRequest) -> Sequence[str]:
    if wire.texts is not None:
        return wire.texts
    return [item if isinstance(item, str) else item.text for item in wire.documents or ()]


def _usage(embedded: Embedded) -> EmbeddingUsage:
    count = sum(embedded.num_tokens)
    return EmbeddingUsage(count, count)


_MAX_TEXTS = 1024
"""Maximum number of texts between token ids in one request, because the engine tokenizes each of them separately."""


async def plain_inputs(raw: Inputs | None, parameter: str, runtime: Runtime) -> PlainInputs | None:
    """Converts inputs to texts and lists of token ids. A text mixed with token ids gets BOS only if it comes first.

    Raises:
        InvalidInput: an object contains no text, token ids are mixed with whole inputs, or there are too many texts
            between token ids.
        StokerError: the model cannot answer now.
    """
    if raw is None or isinstance(raw, str):
        return raw
    if isinstance(raw, InputText):
        return _text(raw, parameter)
    items = [_text(item, f"{parameter}[{i}]") if isinstance(item, InputText) else item for i, item in enumerate(raw)]
    parts = [item for item in items if not isinstance(item, list)]
    lists = [item for item in items if isinstance(item, list)]
    is_one = any(isinstance(item, int) for item in parts)
    if is_one and lists:
        raise InvalidInput(f"`{parameter}` mixes token ids and inputs", parameter=parameter)
    texts = [part for mixed in ((parts,) if is_one else lists) for part in mixed if isinstance(part, str)]
    if len(texts) > _MAX_TEXTS:
        message = f"`{parameter}` has more than {_MAX_TEXTS} texts between token ids"
        raise InvalidInput(message, parameter=parameter)
    if not texts:
        return cast("PlainInputs", items)
    if is_one:
        return [*await _token_ids(parts, runtime)]
    return [await _token_ids(item, runtime) if isinstance(item, list) else item for item in items]


def _text(given: InputText, where: str) -> str:
    if given.prompt_string is not None:
        return given.prompt_string
    if not given.content:
        raise InvalidInput(f"`{where}` has neither `prompt_string` nor `content`", parameter=where)
    for part in given.content:
        if part.type != "text" or part.text is None:
            message = f"`{where}.content` may have parts of the type text only: images and audio are not embedded"
            raise InvalidInput(message, parameter=f"{where}.content")
    return "".join(part.text or "" for part in given.content)


async def _token_ids(parts: Sequence[int | str], runtime: Runtime) -> list[int]:
    found: list[int] = []
    for index, part in enumerate(parts):
        if isinstance(part, str):
            found += (await runtime.ask(Tokenize(part, wants_bos=index == 0))).token_ids
        else:
            found.append(part)
    return found
