"""Computes embeddings and reranking scores with a llama-server that was started for that task."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stoker.core.request import check_token_ids
from stoker.engine.embeddings import Rows, as_rows, input_too_long, normalised
from stoker.engine.question_messages import Embed, Embedded
from stoker.errors import BackendError, InvalidInput
from stoker.runtime.external.client import ServerClient, decode
from stoker.runtime.llama_server.model_file import ModelFile, Task
from stoker.runtime.llama_server.tokens import RemoteTokenizer
from stoker.runtime.llama_server.wire import Embedding, Ranks

_PAIR_TOKENS = 4
"""Maximum number of special tokens around and between the two texts of a pair."""


@dataclass(frozen=True, slots=True)
class Input:
    """The tokens of one input."""

    token_ids: list[int]
    text: str | None
    """The input's text; None = the input was given as tokens, or was truncated."""


class Embeddings:
    """Answers the `Embed` questions to one model. Belongs to one event loop.

    Args:
        model: the served model.
        name: the model's name, for messages.
        tokenizer: the tokenizer of the same server.
        vocab_size: size of the model's vocabulary.
    """

    def __init__(self, model: ModelFile, name: str, tokenizer: RemoteTokenizer, vocab_size: int) -> None:
        self._model = model
        self._name = name
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size

    def check(self, embed: Embed) -> None:
        """Refuses a question that this model does not support.

        Raises:
            InvalidInput: the model does not embed or rerank, or a parameter is invalid.
        """
        name, task, parameter = self._name, self._model.task, embed.parameter
        if task is Task.TEXT:
            message = f"{name} cannot embed: its llama-server was not started for embeddings"
            raise InvalidInput(f"{message}. Serve an embedding model, or start it with --pooling", parameter="model")
        if not embed.inputs:
            raise InvalidInput(f"`{parameter}` is empty: there is nothing to compute", parameter=parameter)
        if task is Task.RANK and embed.query is None:
            raise InvalidInput(f"{name} is a reranking model without embeddings: use /v1/rerank", parameter="model")
        if task is Task.EMBEDDING and embed.query is not None:
            message = f"{name} is not a reranking model: serve one, or compare embeddings from /v1/embeddings"
            raise InvalidInput(message, parameter="model")
        size = self._model.embedding_size
        if embed.dimensions is not None and not 1 <= embed.dimensions <= size:
            message = f"`dimensions` must be between 1 and {size}, the size of the embeddings of {name}"
            raise InvalidInput(f"{message}, not {embed.dimensions}", parameter="dimensions")

    async def answer(self, embed: Embed, client: ServerClient) -> Embedded:
        """The embeddings or scores of all inputs.

        Raises:
            InvalidInput: an input has no tokens, or a token id that is not in the vocabulary.
            ContextLengthExceeded: an input is too long, and the request does not allow truncation.
            BrokenOff: the server is gone.
            StokerError: the server failed.
        """
        return await self._compute(embed, await self._inputs(embed), client)

    async def _inputs(self, embed: Embed) -> list[Input]:
        """The tokens of every input, truncated if the request allows that."""
        limit = self._model.context_size
        if embed.query is not None:
            limit -= len(await self._encoded(embed.query, embed, is_pair=True)) + _PAIR_TOKENS
        names = [f"`{embed.parameter}[{index}]`" for index in range(len(embed.inputs))]
        return [await self._fitting(*pair, embed, limit) for pair in zip(embed.inputs, names, strict=True)]

    async def _compute(self, embed: Embed, inputs: list[Input], client: ServerClient) -> Embedded:
        if embed.query is not None:
            rows = await self._ranks(embed, inputs, client)
        else:
            content = [given.token_ids for given in inputs]
            raw = await client.post("/embedding", {"content": content, "embd_normalize": -1}, None)
            found = sorted(decode(raw, list[Embedding], "llama-server's embeddings"), key=lambda entry: entry.index)
            rows = as_rows([entry.embedding[0] for entry in found])
            rows = normalised(rows[:, : embed.dimensions], embed.norm)
        if len(rows) != len(inputs) or not np.isfinite(rows).all():
            raise BackendError("llama-server gave other numbers than it was asked for")
        num_tokens = [len(given.token_ids) for given in inputs]
        return Embedded(embed.question_id, rows.astype("<f4").tobytes(), rows.shape[1], num_tokens)

    async def _ranks(self, embed: Embed, inputs: list[Input], client: ServerClient) -> Rows:
        """The reranking scores. They are requested with texts, because llama-server takes no pairs of token lists."""
        texts = [await self._tokenizer.text(i.token_ids) if i.text is None else i.text for i in inputs]
        raw = await client.post("/rerank", {"query": embed.query, "documents": texts}, None)
        found = sorted(decode(raw, Ranks, "llama-server's ranks").results, key=lambda entry: entry.index)
        return as_rows([[entry.relevance_score] for entry in found])

    async def _fitting(self, given: str | list[int], name: str, embed: Embed, limit: int) -> Input:
        token_ids = await self._encoded(given, embed, is_pair=embed.query is not None)
        check_token_ids(embed.parameter, tuple(token_ids), self._vocab_size)
        if not token_ids:
            raise InvalidInput(f"{name} is empty: it has no tokens", parameter=embed.parameter)
        if len(token_ids) <= limit:
            return Input(token_ids, given if isinstance(given, str) else None)
        num_suffix = self._tokenizer.num_suffix if isinstance(given, str) and embed.query is None else 0
        if not embed.truncates or limit <= num_suffix:
            raise input_too_long(len(token_ids), limit, name)
        # Truncation keeps the special tokens that the model expects at the end of a text.
        return Input([*token_ids[: limit - num_suffix], *token_ids[len(token_ids) - num_suffix :]], None)

    async def _encoded(self, given: str | list[int], embed: Embed, *, is_pair: bool) -> list[int]:
        if not isinstance(given, str):
            return given
        tokens = await self._tokenizer.pieces(
            given, parse_special=embed.parse_special, wants_bos=False, add_special=not is_pair
        )
        return [token.id for token in tokens]
