"""DRY ("don't repeat yourself"): penalizes tokens that would extend a repetition of earlier text.

Source: https://github.com/oobabooga/text-generation-webui/pull/5677, in llama.cpp's form (`src/llama-sampler.cpp`,
`llama_sampler_init_dry`). Unlike there, repetitions are updated with each token, in one vectorized pass over the
window, instead of being searched anew at each step. Sequence breakers are found in the text of the tokens, so that
the tokenization of a breaker does not matter.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from math import log

import numpy as np
from numpy.typing import NDArray

from stoker.core.params import SamplingParams
from stoker.errors import InvalidInput
from stoker.sampling.candidates import Logits, Row, TokenIds
from stoker.sampling.edits import LARGEST, Vocabulary

_FLOAT32_MAX_LOG = 88.7228391


class SequenceBreakers:
    """Counts the tokens since a sequence breaker (a string) last ended in the text.

    Args:
        breakers: strings that are not empty; a breaker may span several tokens, or be a part of one.
        token_bytes: returns the text of one token.
        history: the tokens so far.
    """

    def __init__(
        self, breakers: tuple[bytes, ...], token_bytes: Callable[[int], bytes], history: Sequence[int]
    ) -> None:
        self._breakers = frozenset(breakers)
        self._lengths = sorted({len(breaker) for breaker in breakers})
        self._token_bytes = token_bytes
        self._tail_length = max(map(len, breakers), default=1) - 1
        self._is_in: dict[int, bool] = {}
        self.num_since, self._tail = self._search(history)

    def push(self, token_id: int) -> None:
        piece = self._token_bytes(token_id)
        text = self._tail + piece
        self.num_since = 0 if self._is_end_in(text, len(self._tail) + 1) else self.num_since + 1
        self._tail = self._last_bytes(text)

    def is_in(self, token_id: int) -> bool:
        """Whether the text of this token alone contains a breaker."""
        found = self._is_in.get(token_id)
        if found is None:
            found = self._is_in[token_id] = self._is_end_in(self._token_bytes(token_id), 1)
        return found

    def _is_end_in(self, text: bytes, first: int) -> bool:
        """Whether a breaker ends at `first` or later. Looks pieces of text up in a set: there may be many breakers."""
        return any(
            text[end - length : end] in self._breakers
            for length in self._lengths[: bisect_right(self._lengths, len(text))]
            for end in range(max(length, first), len(text) + 1)
        )

    def _last_bytes(self, text: bytes) -> bytes:
        """The end of the text, in which a breaker that ends in the next token may begin."""
        return text[-self._tail_length :] if self._tail_length else b""

    def _search(self, history: Sequence[int]) -> tuple[int, bytes]:
        """Returns `num_since` and the last bytes. Searches backward, only as far as the last breaker requires."""
        size = 256
        while True:
            pieces = [self._token_bytes(token_id) for token_id in history[-size:]]
            text = b"".join(pieces)
            end = max((text.rfind(b) + len(b) for b in self._breakers if b in text), default=0)
            # A breaker that begins before this text may end after `end` only if `end` <= `_tail_length`.
            if size >= len(history) or end > self._tail_length:
                return _num_since(end, pieces) if end else len(history), self._last_bytes(text)
            size *= 4


class Dry:
    """The DRY penalties of one sequence.

    ```
    history:          a b c c b c y a b c        the last token is the final c
    repeat lengths:   0 0 3 1 0 2 0 0 0          3: the last three tokens of the history (a b c) end here, too
    next tokens:          c b   y                they would extend repetitions of 3, 1 and 2 tokens
    ```
    """

    def __init__(  # one argument per parameter of the DRY method
        self,
        *,
        multiplier: float,
        base: float,
        allowed_length: int,
        window: int | None,
        breakers: SequenceBreakers,
        history: Sequence[int],
    ) -> None:
        self._multiplier = multiplier
        self._base = base
        self._allowed_length = allowed_length
        self._max_exponent = int(_FLOAT32_MAX_LOG / log(base)) if base > 1.000001 else None
        self._window = window
        self._breakers = breakers
        self._size = len(history)
        self._tokens: TokenIds = np.zeros(max(1024, 2 * self._size), dtype=np.intp)
        self._tokens[: self._size] = history
        self._repeats: NDArray[np.intp] = np.zeros_like(self._tokens)
        self._start_repeats()
        self._token_ids, self._penalties = self._penalise()

    @classmethod
    def compile(cls, params: SamplingParams, vocabulary: Vocabulary, prompt: Sequence[int]) -> Dry | None:
        base, last_n = params.dry_base, params.dry_penalty_last_n
        assert base is not None, "the params are complete"
        if not params.dry_multiplier or base < 1 or not last_n:
            return None
        breakers = tuple(text.encode() for text in params.dry_sequence_breakers or ())
        if b"" in breakers:
            raise InvalidInput("`dry_sequence_breakers` has an empty string", parameter="dry_sequence_breakers")
        return cls(
            multiplier=params.dry_multiplier,
            base=base,
            allowed_length=params.dry_allowed_length or 0,
            window=last_n if last_n > 0 else None,
            breakers=SequenceBreakers(breakers, vocabulary.token_bytes, prompt),
            history=prompt,
        )

    @property
    def is_idle(self) -> bool:
        return not self._token_ids.size

    @property
    def token_ids(self) -> TokenIds:
        return self._token_ids

    def apply(self, row: Row) -> None:
        row[self._token_ids] = self.changed(row[self._token_ids])

    def changed(self, before: Logits) -> Logits:
        return np.where(np.isneginf(before), before, (before - self._penalties).clip(-LARGEST, LARGEST))

    def push(self, token_id: int) -> None:
        if self._size == self._tokens.size:
            self._tokens = np.concatenate((self._tokens, np.zeros_like(self._tokens)))
            self._repeats = np.concatenate((self._repeats, np.zeros_like(self._repeats)))
        self._tokens[self._size] = token_id
        self._size += 1
        self._breakers.push(token_id)
        self._extend_repeats(token_id)
        self._token_ids, self._penalties = self._penalise()

    @property
    def _start(self) -> int:
        return 0 if self._window is None else max(0, self._size - self._window)

    def _start_repeats(self) -> None:
        """Computes the repeat lengths of the prompt: the Z function of the reversed window."""
        window = self._tokens[self._start : self._size]
        self._repeats[self._start : self._size] = _z_function(window[::-1].tolist())[::-1]

    def _extend_repeats(self, token_id: int) -> None:
        """Updates the repeat lengths: at position j, length[j - 1] + 1 if j holds the new token, else 0."""
        start, last = self._start, self._size - 1
        before = self._repeats[start:last]
        longer = np.ones_like(before)
        longer[1:] += before[:-1]
        before[:] = np.where(self._tokens[start:last] == token_id, longer, 0)

    def _penalise(self) -> tuple[TokenIds, NDArray[np.float32]]:
        start, last = self._start, self._size - 1
        limit = min(self._breakers.num_since, self._size - start)
        if self._size - start <= self._allowed_length or limit < self._allowed_length:
            return np.zeros(0, dtype=np.intp), np.zeros(0, dtype=np.float32)
        offsets = np.flatnonzero(self._repeats[start:last] >= self._allowed_length)
        # A repetition extends neither across a breaker nor across the start of the window.
        lengths = np.minimum(self._repeats[start + offsets], np.minimum(limit, offsets + 1))
        return self._penalties_of(self._tokens[start + offsets + 1], lengths)

    def _penalties_of(self, next_tokens: TokenIds, lengths: NDArray[np.intp]) -> tuple[TokenIds, NDArray[np.float32]]:
        order = np.argsort(lengths, kind="stable")
        order = order[lengths[order] >= self._allowed_length]
        # Later entries of a dict replace earlier ones, so each token gets its longest repetition.
        longest = dict(zip(next_tokens[order].tolist(), lengths[order].tolist(), strict=True))
        kept = {token_id: n for token_id, n in longest.items() if not self._breakers.is_in(token_id)}
        penalties = [self._penalty(n) for n in kept.values()]
        return np.array(list(kept), dtype=np.intp), np.array(penalties, dtype=np.float32)

    def _penalty(self, length: int) -> float:
        exponent = length - self._allowed_length
        if self._max_exponent is not None:
            exponent = min(exponent, self._max_exponent)
        return min(self._multiplier * self._base**exponent, LARGEST)


def _num_since(end: int, pieces: list[bytes]) -> int:
    """Number of tokens after the one that contains the byte before `end`."""
    ends = list(accumulate(map(len, pieces)))
    return len(pieces) - 1 - bisect_left(ends, end)


def _z_function(tokens: list[int]) -> list[int]:
    """For each position, how many tokens from it equal the list's start; 0 at 0. Linear time (Gusfield 1997, 1.4)."""
    lengths = [0] * len(tokens)
    left = right = 0
    for k in range(1, len(tokens)):
        length = min(right - k, lengths[k - left]) if k < right else 0
        while k + length < len(tokens) and tokens[length] == tokens[k + length]:
            length += 1
        lengths[k] = length
        if k + length > right:
            left, right = k, k + length
    return lengths
