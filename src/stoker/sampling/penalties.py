"""Repetition, presence and frequency penalties over a window of the token history, updated with each token.

The semantics are those of llama.cpp (`src/llama-sampler.cpp`, `llama_sampler_init_penalties`), except that a window of
-1 really is the whole history.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stoker.core.params import SamplingParams
from stoker.sampling.candidates import Logits, Row, TokenIds
from stoker.sampling.edits import LARGEST, Vocabulary


class TokenCounts:
    """Counts of each token in the last `window` tokens of a history (`None` = in all), kept as two short arrays."""

    def __init__(self, window: int | None, history: Sequence[int]) -> None:
        recent = history if window is None else history[-window:]
        self.window = window
        self._recent = deque(() if window is None else recent)
        self._slots: dict[int, int] = {}
        self._token_ids: TokenIds = np.zeros(16, dtype=np.intp)
        self._counts: NDArray[np.float32] = np.zeros(16, dtype=np.float32)
        for token_id, count in Counter(recent).items():
            self._append(token_id, count)

    @property
    def token_ids(self) -> TokenIds:
        """The distinct token ids in the window, in no particular order."""
        return self._token_ids[: len(self._slots)]

    @property
    def counts(self) -> NDArray[np.float32]:
        """The count of each token of `token_ids`, at least 1."""
        return self._counts[: len(self._slots)]

    def push(self, token_id: int) -> None:
        slot = self._slots.get(token_id)
        if slot is None:
            self._append(token_id, 1)
        else:
            self._counts[slot] += 1
        if self.window is not None:
            self._recent.append(token_id)
            if len(self._recent) > self.window:
                self._forget(self._recent.popleft())

    def _append(self, token_id: int, count: int) -> None:
        slot = self._slots[token_id] = len(self._slots)
        if slot == self._token_ids.size:
            self._token_ids = np.concatenate((self._token_ids, np.zeros_like(self._token_ids)))
            self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
        self._token_ids[slot], self._counts[slot] = token_id, count

    def _forget(self, token_id: int) -> None:
        slot = self._slots[token_id]
        self._counts[slot] -= 1
        if self._counts[slot] == 0:
            self._remove(token_id, slot)

    def _remove(self, token_id: int, slot: int) -> None:
        last = len(self._slots) - 1
        moved = int(self._token_ids[last])
        self._token_ids[slot], self._counts[slot] = moved, self._counts[last]
        self._slots[moved] = slot
        del self._slots[token_id]


class Penalties:
    """Repetition, presence and frequency penalties of one sequence.

    Each logit of a token in the window is divided by `repetition` (multiplied if it is below 0). Then `presence` is
    subtracted, and `frequency` times the token's count.
    """

    def __init__(self, counts: TokenCounts, *, repetition: float, presence: float, frequency: float) -> None:
        self._counts = counts
        self.repetition = np.float32(repetition)
        self.presence = np.float32(presence)
        self.frequency = np.float32(frequency)

    @classmethod
    def compile(cls, params: SamplingParams, vocabulary: Vocabulary, prompt: Sequence[int]) -> Penalties | None:
        repetition = 1.0 if params.repetition_penalty is None else params.repetition_penalty
        presence, frequency = params.presence_penalty or 0.0, params.frequency_penalty or 0.0
        if not params.penalty_last_n or (repetition == 1 and not presence and not frequency):
            return None
        counts = TokenCounts(params.penalty_last_n if params.penalty_last_n > 0 else None, prompt)
        return cls(counts, repetition=repetition, presence=presence, frequency=frequency)

    @property
    def window(self) -> int | None:
        """Number of latest tokens whose repetition is penalized; None = the whole history."""
        return self._counts.window

    @property
    def is_idle(self) -> bool:
        return not self._counts.token_ids.size

    @property
    def token_ids(self) -> TokenIds:
        return self._counts.token_ids

    def apply(self, row: Row) -> None:
        row[self.token_ids] = self.changed(row[self.token_ids])

    def changed(self, before: Logits) -> Logits:
        after = np.where(before <= 0, before * self.repetition, before / self.repetition)
        after -= self._counts.counts * self.frequency + self.presence
        # Only logits near the limits of float32 are clipped. A banned token (-inf) stays banned.
        return np.where(np.isneginf(before), before, after.clip(-LARGEST, LARGEST))

    def push(self, token_id: int) -> None:
        self._counts.push(token_id)
