"""Drafts for one sequence (speculative decoding) and their acceptance. `speculation` decides how much is drafted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

from stoker.core.batch import Entry
from stoker.core.prompt_lookup import MAX_MATCH, PromptLookup

Source: TypeAlias = Literal["text", "grammar", "model"]

CERTAIN = MAX_MATCH + 1
"""Value of `Drafter.match` for a draft that the grammar forces."""
MODEL = MAX_MATCH + 2
"""Value of `Drafter.match` for a draft that a draft model makes."""


class Guide(Protocol):
    """A constraint (grammar) on the next entries of a sequence. Its state is that after the sequence's last entry."""

    def forced_text(self) -> list[Entry]:
        """Tokens of the text that must come next; other tokens may spell the same text. Often empty."""
        ...

    def validate(self, token_ids: Sequence[Entry]) -> int:
        """Number of leading entries that the constraint allows one after the other."""
        ...


class Drafter:
    """Finds drafts for one sequence. A sequence owns one from its first draft to its end.

    Args:
        entries: the entries of the sequence; the list grows with it.
        chances: probability that a drafted entry is accepted, by length of the match (from 1); then the probabilities
            for `CERTAIN` and `MODEL`.
        guide: the constraint on the sequence; None = no constraint.
    """

    __slots__ = (
        "_certain",
        "_guide",
        "_has_rows",
        "chances",
        "lookup",
        "match",
        "num_accepted",
        "num_drafted",
        "num_known",
        "num_outcomes",
        "start",
    )

    def __init__(self, entries: list[Entry], chances: list[float], guide: Guide | None = None) -> None:
        self.lookup = PromptLookup(entries)
        self._has_rows = min(entries, default=0) < 0
        self.chances = chances
        self._guide = guide
        self._certain: list[Entry] = []
        self.start = 0
        """Position in the sequence from which the last draft is copied."""
        self.match = 0
        """Length of the match that led to the last draft; 0 = no draft, `CERTAIN` or `MODEL` = another source."""
        self.num_drafted = 0
        self.num_accepted = 0
        self.num_outcomes = 0
        """Number of entries drafted by the draft model whose acceptance is known."""
        self.num_known = 0
        """Number of such entries of all sequences when this sequence's probability was last taken from theirs."""

    def look(self, most: int) -> tuple[float, int]:
        """Looks for a draft of up to `most` entries; returns the acceptance probability of each, and their number."""
        if self._guide is None:
            self.start, self.match = self.lookup.find()
            most = self._num_tokens(most) if self._has_rows and self.match else most
            return (self.chances[self.match - 1] if self.match else 0.0), most
        count = self._look_guided(self._guide, most)
        return (self.chances[self.match - 1] if count else 0.0), count

    @property
    def source(self) -> Source:
        """Source of the last draft."""
        return "grammar" if self.match == CERTAIN else "model" if self.match == MODEL else "text"

    def possible(self, draft: list[Entry]) -> list[Entry]:
        """The leading part of a model's draft that the constraint allows."""
        return draft if self._guide is None else draft[: self._guide.validate(draft)]

    def guess(self, count: int) -> list[Entry]:
        """The first `count` ≥ 1 entries of the draft that `look` found."""
        return self._certain[:count] if self.match == CERTAIN else self.lookup.guess(self.start, count)

    def _look_guided(self, guide: Guide, most: int) -> int:
        self._certain = guide.forced_text()
        if self._certain:
            self.match = CERTAIN
            return min(most, len(self._certain))
        self.start, self.match = self.lookup.find()
        most = self._num_tokens(most) if self._has_rows and self.match else most
        count = guide.validate(self.lookup.guess(self.start, most)) if self.match and most else 0
        self.match = self.match if count else 0
        return count

    def _num_tokens(self, most: int) -> int:
        """Number of drafted entries before the first image row: image rows cannot be sampled."""
        guess = self.lookup.guess(self.start, most)
        return next((index for index, entry in enumerate(guess) if entry < 0), most)
