"""Guesses for one sequence, and how often they came out. How many are made of it is decided by `speculation`."""

from __future__ import annotations

from stoker.core.batch import Entry
from stoker.core.prompt_lookup import PromptLookup


class Drafter:
    """What is known of one sequence.

    Args:
        entries: of the sequence.
        chances: of a drafted entry to come out, by the length of the match.
    """

    __slots__ = ("chances", "lookup", "match", "num_accepted", "num_drafted", "start")

    def __init__(self, entries: list[Entry], chances: list[float]) -> None:
        self.lookup = PromptLookup(entries)
        self.chances = chances
        self.start = 0
        """Where the last guess began,"""
        self.match = 0
        """and behind how long a match; 0 = there was none."""
        self.num_drafted = 0
        self.num_accepted = 0

    def look(self) -> float:
        """Looks for a guess; returns the chance of its entries."""
        self.start, self.match = self.lookup.find()
        return self.chances[self.match - 1] if self.match else 0.0
