"""Computes embeddings with a vLLM that was started for that task."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stoker.core.request import check_token_ids
from stoker.engine.cards import EmbeddingCard
from stoker.engine.embeddings import as_rows, input_too_long, normalised
from stoker.engine.question_messages import Embed, Embedded
from stoker.errors import BackendError, InvalidInput
from stoker.runtime.external.client import ServerClient, decode
from stoker.runtime.vllm.model_folder import ModelFolder
from stoker.runtime.vllm.wire import EmbeddingList
from stoker.text.tokenizer import encode_prompt

AT = "/v1/embeddings"
_ASK_S = 60.0


@dataclass(frozen=True, slots=True)
class Embeddings:
    """Answers the `Embed` questions to one model.

    Args:
        model: the model's files.
        name: the served model's name, for messages.
        size: dimensions of an embedding.
    """

    model: ModelFolder
    name: str
    size: int

    @property
    def card(self) -> EmbeddingCard:
        return EmbeddingCard(self.model.pooling, self.size, self.model.context_size)

    def check(self, embed: Embed) -> None:
        """Refuses a question that this model does not support.

        Raises:
            InvalidInput: the question is for reranking, has no inputs, or an invalid `dimensions`.
        """
        parameter = embed.parameter
        if embed.query is not None:
            message = f"{self.name} cannot rerank: --runtime vllm supports embeddings only"
            raise InvalidInput(message, parameter="model")
        if not embed.inputs:
            raise InvalidInput(f"`{parameter}` is empty: there is nothing to compute", parameter=parameter)
        if embed.dimensions is not None and not 1 <= embed.dimensions <= self.size:
            message = f"`dimensions` must be between 1 and {self.size}, the size of the embeddings of {self.name}"
            raise InvalidInput(f"{message}, not {embed.dimensions}", parameter="dimensions")

    def tokens(self, embed: Embed) -> list[list[int]]:
        """The tokens of every input, truncated if the request allows that. Call it on a thread: long texts take long.

        Raises:
            InvalidInput: an input has no tokens, or a token id that is not in the vocabulary.
            ContextLengthExceeded: an input is too long, and the request does not allow truncation.
        """
        return [self._fitting(index, given, embed) for index, given in enumerate(embed.inputs)]

    async def answer(self, embed: Embed, token_ids: list[list[int]], client: ServerClient) -> Embedded:
        """The embeddings of all inputs.

        Raises:
            BrokenOff: the server is gone.
            StokerError: the server failed.
        """
        rows = await ask_rows(client, token_ids, None)
        if rows.shape != (len(token_ids), self.size) or not np.isfinite(rows).all():
            raise BackendError("vLLM gave other numbers than it was asked for")
        rows = normalised(rows[:, : embed.dimensions], embed.norm)
        return Embedded(embed.question_id, rows.astype("<f4").tobytes(), rows.shape[1], list(map(len, token_ids)))

    def _fitting(self, index: int, given: str | list[int], embed: Embed) -> list[int]:
        tokenizer, limit = self.model.tokenizer, self.model.context_size
        behind: list[int] = []
        if isinstance(given, str):
            behind = list(tokenizer.around().behind)
            given = encode_prompt(tokenizer, given, parse_special=embed.parse_special)
        check_token_ids(embed.parameter, tuple(given), tokenizer.vocab_size)
        name, length = f"`{embed.parameter}[{index}]`", len(given) + len(behind)
        if not given:
            raise InvalidInput(f"{name} is empty: it has no tokens", parameter=embed.parameter)
        if length > limit and (not embed.truncates or limit <= len(behind)):
            raise input_too_long(length, limit, name)
        return [*given[: limit - len(behind)], *behind]  # truncation keeps the special tokens at the end


async def ask_rows(client: ServerClient, token_ids: list[list[int]], timeout_s: float | None = _ASK_S) -> np.ndarray:
    """Embeddings as vLLM returns them, of shape `(inputs, size)`; without rows if their lengths differ.

    Raises:
        BrokenOff: the server is gone.
        StokerError: the server failed.
    """
    body = {"input": token_ids, "encoding_format": "float", "use_activation": False}
    found = decode(await client.post(AT, body, timeout_s), EmbeddingList, "vLLM's embeddings").data
    values = [entry.embedding for entry in sorted(found, key=lambda entry: entry.index)]
    return as_rows(values)
