"""Tracks a grammar through one answer, and computes token masks. Satisfies `stoker.sampling.constraint.Constraint`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from llguidance import LLMatcher

_ALL: Final = 0xFFFFFFFF


class GrammarConstraint:
    """The state of one grammar in one answer; see `Constraint`. Must not be used by several threads at once.

    Args:
        matcher: the engine's matcher in its initial state; the constraint becomes its owner.
        vocab_size: number of tokens in the vocabulary.
        eog_token_ids: all end-of-generation tokens.
    """

    def __init__(self, matcher: LLMatcher, vocab_size: int, eog_token_ids: frozenset[int]) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._eog_token_ids = eog_token_ids
        self._words: NDArray[np.uint32] | None = None
        self._address = 0  # address of the mask's words; asking NumPy for it is slow
        self.error: str | None = _error_of(matcher)

    @property
    def is_complete(self) -> bool:
        """See `Constraint.is_complete`."""
        return self.error is None and self._matcher.is_stopped()

    @property
    def can_end(self) -> bool:
        """See `Constraint.can_end`."""
        return self.error is None and self._matcher.is_accepting()

    def mask(self) -> NDArray[np.uint32] | None:
        """See `Constraint.mask`. Takes 5 to 500 µs for most grammars, and does not hold the GIL."""
        words = self._words
        if words is None:
            words = self._words = np.zeros((self._vocab_size + 31) // 32, dtype=np.uint32)
            self._address = words.ctypes.data
        self._matcher.unsafe_compute_mask_ptr(self._address, words.nbytes)
        self.error = _error_of(self._matcher)
        return None if words[0] == _ALL and self._is_full(words) else words

    def allows(self, token_id: int) -> bool:
        """See `Constraint.allows`. Takes about 1 µs."""
        if token_id in self._eog_token_ids:
            return self.can_end
        return self._takes(token_id)

    def push(self, token_id: int) -> None:
        """See `Constraint.push`."""
        if not self._matcher.consume_token(token_id):
            self.error = _error_of(self._matcher) or f"token {token_id} is not allowed"

    def forced(self) -> int | None:
        """Always None: even if the next text is certain, different tokens can spell it, and sampling chooses one."""
        return None

    def forced_text(self) -> list[int]:
        """See `Constraint.forced_text`."""
        return [] if self.error is not None else self._matcher.compute_ff_tokens()

    def validate(self, token_ids: Sequence[int]) -> int:
        """See `Constraint.validate`."""
        inside = next((i for i, token_id in enumerate(token_ids) if token_id >= self._vocab_size), len(token_ids))
        return self._matcher.validate_tokens(list(token_ids[:inside])) if self.error is None else 0

    def copy(self) -> GrammarConstraint:
        """A copy in the same state. Takes 1 µs in the initial state, and milliseconds late in a long answer."""
        return GrammarConstraint(self._matcher.deep_copy(), self._vocab_size, self._eog_token_ids)

    def _takes(self, token_id: int) -> bool:
        """Whether the engine allows a token that is not an end-of-generation token."""
        return self.error is None and token_id < self._vocab_size and self._matcher.validate_tokens([token_id]) == 1

    def _is_full(self, words: NDArray[np.uint32]) -> bool:
        last = _ALL >> (-self._vocab_size % 32)
        return words[-1] == last and bool((words[:-1] == _ALL).all())


def _error_of(matcher: LLMatcher) -> str | None:
    return matcher.get_error().partition("\n")[0] if matcher.is_error() else None
