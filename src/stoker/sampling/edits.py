"""Edits of a row's logits, the first sampling stages: their interface, logit bias, bans and minimum length.

An edit changes a few logits of a row, and tracks the tokens of its sequence itself. Penalties and DRY, which depend on
the token history, have modules of their own; where a request puts them behind other stages, they are `Late`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol

import numpy as np

from stoker.core.params import SamplingParams
from stoker.sampling.candidates import Candidates, Logits, Row, TokenIds
from stoker.sampling.draws import Draws

LARGEST = 1e38
"""Limit to which edits clip finite logits, within float32: only a ban makes a logit infinite."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The facts about a model's tokens that edits need.

    Attributes:
        size: number of tokens, and of logits in a row.
        eog_token_ids: all end-of-generation tokens.
        token_bytes: returns the text of one token.
    """

    size: int
    eog_token_ids: frozenset[int]
    token_bytes: Callable[[int], bytes]


class Edit(Protocol):
    """One kind of change to the logits of a row, such as a bias or a penalty. It belongs to one sequence."""

    @property
    def is_idle(self) -> bool:
        """`apply` would change nothing now."""
        ...

    @property
    def token_ids(self) -> TokenIds:
        """The tokens whose logits `apply` changes now, each of them once; at least one unless it is idle."""
        ...

    def apply(self, row: Row) -> None:
        """Changes the row in place. A finite logit becomes finite or -inf; a logit of -inf stays -inf."""
        ...

    def push(self, token_id: int) -> None:
        """Adds the next token of the completion to the history."""
        ...


class HistoryEdit(Edit, Protocol):
    """An edit that depends on the tokens so far, and that may come behind other stages, see `Late`."""

    def changed(self, before: Logits) -> Logits:
        """The logits of `token_ids` after the edit, as of `apply`, from those before it."""
        ...


@dataclass(frozen=True, slots=True)
class Late:
    """An edit behind other stages: a stage that changes the logits of the candidates that they have left."""

    edit: HistoryEdit

    def __call__(self, candidates: Candidates, draws: Draws) -> Candidates:
        if self.edit.is_idle:
            return candidates
        candidates, token_ids = candidates.by_token_id(), self.edit.token_ids
        positions = np.searchsorted(candidates.token_ids, token_ids).clip(max=len(candidates) - 1)
        is_left = candidates.token_ids[positions] == token_ids
        changed = self.edit.changed(candidates.logits[positions])
        logits = candidates.logits.copy()
        logits[positions[is_left]] = changed[is_left]
        return Candidates(candidates.token_ids, logits)


def as_token_ids(token_ids: Collection[int], vocab_size: int) -> TokenIds:
    """The token ids as an ascending array without duplicates."""
    array = np.array(sorted(set(token_ids)), dtype=np.intp)  # `np.unique` imports masked arrays: 20 ms at start-up
    assert not array.size or (array[0] >= 0 and array[-1] < vocab_size), "token ids were checked at the door"
    return array


class LogitBias:
    """Adds to the logits of given tokens. Bans are biases of -inf: `banned_token_ids`, and `ignore_eos` for all EOG."""

    is_idle = False

    def __init__(self, biases: dict[int, float], vocab_size: int) -> None:
        self.token_ids = as_token_ids(biases, vocab_size)
        ordered = [biases[token_id] for token_id in self.token_ids.tolist()]
        self.biases = np.array([max(min(b, LARGEST), -LARGEST) if b > -inf else b for b in ordered], dtype=np.float32)

    @classmethod
    def compile(cls, params: SamplingParams, vocabulary: Vocabulary, prompt: Sequence[int]) -> LogitBias | None:
        banned = set(params.banned_token_ids or ())
        if params.ignore_eos:
            banned |= vocabulary.eog_token_ids
        biases = {**(params.logit_bias or {}), **dict.fromkeys(banned, -inf)}
        return cls(biases, vocabulary.size) if biases else None

    @property
    def banned_token_ids(self) -> TokenIds:
        return self.token_ids[np.isneginf(self.biases)]

    def apply(self, row: Row) -> None:
        row[self.token_ids] += self.biases

    def push(self, token_id: int) -> None:
        pass


class MinTokens:
    """Bans end-of-generation tokens and stop tokens until the completion has `min_tokens` tokens."""

    def __init__(self, token_ids: TokenIds, min_tokens: int) -> None:
        self.token_ids = token_ids
        self.num_left = min_tokens

    @classmethod
    def compile(cls, params: SamplingParams, vocabulary: Vocabulary, prompt: Sequence[int]) -> MinTokens | None:
        ends = vocabulary.eog_token_ids | set(params.stop_token_ids or ())
        return cls(as_token_ids(ends, vocabulary.size), params.min_tokens) if params.min_tokens and ends else None

    @property
    def is_idle(self) -> bool:
        return self.num_left <= 0

    def apply(self, row: Row) -> None:
        if not self.is_idle:
            row[self.token_ids] = -inf

    def push(self, token_id: int) -> None:
        self.num_left -= 1
