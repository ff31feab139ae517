"""The seam between deciding how much is drafted and a model that drafts: what every such model offers, and no more."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from typing import NamedTuple, Protocol

from stoker.core.batch import Entry
from stoker.core.sequence import Sequence


class Drafted(NamedTuple):
    """What a model has drafted, and what that took."""

    drafts: list[list[Entry]]
    """For each sequence that was asked for; shorter than wanted, or empty, if no more can be had."""
    num_passes: int
    """Forward passes, one after the other."""
    num_caught_up: int
    """Entries that had to be computed first."""
    seconds: float


class DraftPort(Protocol):
    """A model that guesses how sequences go on. One thread calls it, between two forward passes of the other model.

    It sees entries alone, so whatever it does changes no answer. It keeps what it has computed of a sequence as long
    as it has room; a sequence that was away, or that it has forgotten, is computed again.
    """

    def num_missing(self, sequence: Sequence) -> int | None:
        """Entries that must be computed before the first one is drafted, besides the last; None = nothing can be."""
        ...

    def catch_up(self, sequence: Sequence, most: int) -> Drafted:
        """Computes at most so many of the entries that are missing, of a sequence that has some; drafts nothing."""
        ...

    def draft(self, wanted: Ordered[tuple[Sequence, int]]) -> Drafted:
        """Drafts for each of these sequences so many entries, at least one each. Never fails: it gives nothing then."""
        ...

    def warm_up(self) -> None:
        """Computes once: the first draft shall not pay for touching the weights.

        Raises:
            BackendError: the model cannot compute.
        """
        ...

    def close(self) -> None:
        """Frees everything. Calling it twice is allowed."""
        ...
