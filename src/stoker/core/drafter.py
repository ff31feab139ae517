"""Guesses for one sequence, and how often they came out. How many are made of it is decided by `speculation`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

from stoker.core.batch import Entry
from stoker.core.prompt_lookup import MAX_MATCH, PromptLookup

Source: TypeAlias = Literal["text", "grammar", "model"]

CERTAIN = MAX_MATCH + 1
"""In place of the length of a match: the guess is what the answer must look like."""
MODEL = MAX_MATCH + 2
"""In place of the length of a match: a model has drafted it."""


class Guide(Protocol):
    """What is known of how a sequence must go on. It stands at the sequence's last entry."""

    def forced_text(self) -> list[Entry]:
        """Entries that are certain but for other spellings of the same text; often none."""
        ...

    def validate(self, token_ids: Sequence[Entry]) -> int:
        """How many of these entries are possible one after the other."""
        ...


class Drafter:
    """What is known of one sequence.

    Args:
        entries: of the sequence.
        chances: of a drafted entry to come out, by the length of the match; then if it is certain, and if a model has
            drafted it.
        guide: what the sequence must look like; None = anything.
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
        """Where the last guess began,"""
        self.match = 0
        """and behind how long a match; 0 = there was none, `CERTAIN` or `MODEL` = it was not found in the text."""
        self.num_drafted = 0
        self.num_accepted = 0
        self.num_outcomes = 0
        """Entries that a model has drafted, as far as it is known whether they were right."""
        self.num_known = 0
        """The same for all sequences, when this one's chance was last taken from theirs."""

    def look(self, most: int) -> tuple[float, int]:
        """Looks for a guess of at most so many entries; returns the chance of each, and how many there are."""
        if self._guide is None:
            self.start, self.match = self.lookup.find()
            most = self._num_tokens(most) if self._has_rows and self.match else most
            return (self.chances[self.match - 1] if self.match else 0.0), most
        count = self._look_guided(self._guide, most)
        return (self.chances[self.match - 1] if count else 0.0), count

    @property
    def source(self) -> Source:
        """Where the last guess came from."""
        return "grammar" if self.match == CERTAIN else "model" if self.match == MODEL else "text"

    def possible(self, draft: list[Entry]) -> list[Entry]:
        """What of a model's draft may come."""
        return draft if self._guide is None else draft[: self._guide.validate(draft)]

    def guess(self, count: int) -> list[Entry]:
        """The first `count` entries of the guess, at least one."""
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
        """Number of guessed entries before the first row of an image, which cannot be sampled."""
        guess = self.lookup.guess(self.start, most)
        return next((index for index, entry in enumerate(guess) if entry < 0), most)
