"""The interface of a draft model for speculative decoding. It does not decide when or how much is drafted."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from typing import NamedTuple, Protocol

from stoker.core.batch import Entry
from stoker.core.sequence import Sequence


class Drafted(NamedTuple):
    """The result of a call of a draft model, and its cost."""

    drafts: list[list[Entry]]
    """The draft for each requested sequence; shorter than requested, or empty, if the model can draft no more."""
    num_passes: int
    """Number of consecutive forward passes for drafts."""
    num_caught_up: int
    """Number of missing entries that were computed first."""
    seconds: float


class DraftPort(Protocol):
    """A draft model: predicts how sequences continue. One thread calls it, between forward passes of the main model.

    Drafts never change an answer, because the main model verifies them. The draft model keeps the KV of a sequence as
    long as it has room; a sequence whose KV it has dropped is computed again.
    """

    def num_missing(self, sequence: Sequence) -> int | None:
        """Number of entries to compute before a draft, without the last one; None = no drafts for this sequence."""
        ...

    def catch_up(self, sequence: Sequence, most: int) -> Drafted:
        """Computes up to `most` missing entries of a sequence that lacks some; drafts nothing."""
        ...

    def draft(self, wanted: Ordered[tuple[Sequence, int]]) -> Drafted:
        """Drafts the given number of entries, at least one, for each sequence. Returns empty drafts if it fails."""
        ...

    def warm_up(self) -> None:
        """Computes one pass, so that the weights are in memory before the first draft.

        Raises:
            BackendError: the model cannot compute.
        """
        ...

    def close(self) -> None:
        """Frees everything. Calling it twice is allowed."""
        ...
