"""The infill stage for fill-in-the-middle: it ends an answer when no text is likely to come next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from stoker.core.params import SamplingParams
from stoker.sampling.candidates import Candidates, largest_positions
from stoker.sampling.draws import Draws
from stoker.sampling.edits import Vocabulary

_LIKELY = 0.2
"""Probability below which a text token is dropped."""
_END_FACTOR = 3
_MOST_TEXTS = 256
"""Number of the likeliest tokens that are compared: a token with a lower rank cannot reach `_LIKELY`."""


@dataclass(frozen=True, slots=True)
class Infill:
    """Keeps likely text tokens and end-of-generation tokens ("ends"), or the ends only.

    Only the ends stay if they are likely in relation to the number of candidates, including those with logits of -inf,
    or if no text token has a probability of 0.2. If one text is a prefix of another, the likelier one gets the
    probability of both. Of n likely texts, those with a share of at least 1 / (n + 1) stay. If the answer may not end
    yet, the likeliest candidate stays instead of an end. The semantics are those of llama.cpp
    (`llama_sampler_init_infill`).

    Attributes:
        ends: the end-of-generation tokens that may be chosen, ascending.
        min_tokens: number of completion tokens before which no end may be chosen.
        token_bytes: returns the text of one token.
    """

    ends: tuple[int, ...]
    min_tokens: int
    token_bytes: Callable[[int], bytes]

    @classmethod
    def compile(cls, params: SamplingParams, vocabulary: Vocabulary) -> Infill:
        banned = {*(params.banned_token_ids or ())}
        banned.update(token_id for token_id, bias in (params.logit_bias or {}).items() if bias == -inf)
        ends = set[int]() if params.ignore_eos else vocabulary.eog_token_ids - banned
        if params.allowed_token_ids is not None:
            ends = ends.intersection(params.allowed_token_ids)
        return cls(tuple(sorted(ends)), params.min_tokens or 0, vocabulary.token_bytes)

    def __call__(self, candidates: Candidates, draws: Draws) -> Candidates:
        possible = candidates.without_impossible()
        probabilities = possible.weights()
        probabilities /= probabilities.sum()
        is_end = np.isin(possible.token_ids, self.ends)
        end = float(probabilities[is_end].sum())
        if _END_FACTOR * end * len(candidates) > 1 - end:
            return possible.keep(np.flatnonzero(is_end))
        likely = self._likely(possible, probabilities, is_end)
        if likely:
            least = (sum(likely.values()) + end) / (len(likely) + 1)
            is_end[[at for at, share in likely.items() if share >= least]] = True
        elif not is_end.any():
            return self._end(possible, draws)
        return possible.keep(np.flatnonzero(is_end))

    def _end(self, possible: Candidates, draws: Draws) -> Candidates:
        """The result if no text is likely and no end is among the candidates: truncation may have dropped all ends."""
        if not self.ends or draws.index < self.min_tokens:
            return possible.largest(1)
        return Candidates(np.array(self.ends[:1], dtype=np.intp), np.zeros(1), is_sorted=True)

    def _likely(
        self, possible: Candidates, probabilities: NDArray[np.float64], is_end: NDArray[np.bool_]
    ) -> dict[int, float]:
        """Positions of likely text tokens, with the sum of their probability and that of the texts merged into them."""
        positions = [at for at in largest_positions(possible.logits, _MOST_TEXTS).tolist() if not is_end[at]]
        sums: list[float] = probabilities[positions].tolist()
        texts = [self.token_bytes(token_id) for token_id in possible.token_ids[positions].tolist()]
        gone = set[int]()
        for short, long in _beginnings(texts):
            if short in gone or long in gone:
                continue
            to, from_ = (long, short) if sums[long] > sums[short] else (short, long)
            sums[to] += sums[from_]
            gone.add(from_)
        return {at: sums[i] for i, at in enumerate(positions) if i not in gone and sums[i] >= _LIKELY}


def _beginnings(texts: Sequence[bytes]) -> list[tuple[int, int]]:
    """Ascending pairs of indices (short, long): the first text is a prefix of the second, or equal to it."""
    numbers: dict[bytes, list[int]] = {}
    for number, text in enumerate(texts):
        numbers.setdefault(text, []).append(number)
    return sorted(
        (short, long)
        for long, text in enumerate(texts)
        for end in range(1, len(text) + 1)
        for short in numbers.get(text[:end], ())
        if short != long
    )
