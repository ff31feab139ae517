"""Embeddings from a vLLM that was started for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stoker.core.request import check_token_ids
from stoker.engine.cards import EmbeddingCard
from stoker.engine.embeddings import normalised
from stoker.engine.question_messages import Embed, Embedded
from stoker.errors import BackendError, ContextLengthExceeded, InvalidInput
from stoker.runtime.external.client import ServerClient
from stoker.runtime.vllm.model_folder import ModelFolder
from stoker.runtime.vllm.wire import EmbeddingList, decode
from stoker.text.tokenizer import encode_prompt

AT = "/v1/embeddings"
_ASK_S = 60.0


@dataclass(frozen=True, slots=True)
class Embeddings:
    """Of one model.

    Args:
        model: its files.
        name: under which it is served, for messages.
        size: numbers of one embedding.
    """

    model: ModelFolder
    name: str
    size: int

    @property
    def card(self) -> EmbeddingCard:
        return EmbeddingCard(self.model.pooling, self.size, self.model.context_size)

    def check(self, embed: Embed) -> None:
        """Refuses what this model does not do.

        Raises:
            InvalidInput: says what.
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
        """The tokens of every input, cut if the request says so. Long texts take long.

        Raises:
            InvalidInput: an input has no tokens, or impossible ones.
            ContextLengthExceeded: an input is too long, and is not to be cut.
        """
        return [self._fitting(index, given, embed) for index, given in enumerate(embed.inputs)]

    async def answer(self, embed: Embed, token_ids: list[list[int]], client: ServerClient) -> Embedded:
        """The numbers of all inputs.

        Raises:
            BrokenOff: the server has gone.
            StokerError: it failed.
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
            raise ContextLengthExceeded(
                f"{name} has {length} tokens, but this model takes at most {limit}: it exceeds the available "
                f"context size. Shorten it, or request truncation.",
                num_prompt_tokens=length,
                context_size=limit,
            )
        return [*given[: limit - len(behind)], *behind]  # what the model wants after a text stays there


async def ask_rows(client: ServerClient, token_ids: list[list[int]], timeout_s: float | None = _ASK_S) -> np.ndarray:
    """Embeddings as the model gives them, `(inputs, size)`; no rows if they are not of one length.

    Raises:
        BrokenOff: the server has gone.
        StokerError: it failed.
    """
    body = {"input": token_ids, "encoding_format": "float", "use_activation": False}
    found = decode(await client.post(AT, body, timeout_s), EmbeddingList, "embeddings").data
    values = [entry.embedding for entry in sorted(found, key=lambda entry: entry.index)]
    if len(set(map(len, values))) != 1:
        return np.empty((0, 1), dtype=np.float32)
    return np.array(values, dtype=np.float32)
