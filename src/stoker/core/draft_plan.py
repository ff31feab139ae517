"""Chooses of what could be drafted in a step as much as makes the most tokens a second. Nothing but arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple, TypeAlias

WORTHWHILE = 1.06
"""Speed-up in tokens per second from which drafting pays; step times are not known more precisely."""
_PATIENCE = 1.2
"""Upper bound on the expected slowdown of any sequence because others are drafted for, as a factor."""
_LEAST_CHANCE = 0.05
"""Of all that is drafted for a sequence to come out."""


Offer: TypeAlias = tuple[float, int, int]
"""One entry that could be drafted: the chance that it comes out, with all that stand before it; the place of its
sequence in the step; and how many passes of a draft model this entry and those before it need.
"""


class Plan(NamedTuple):
    """How many entries are drafted in a step."""

    rate: float
    """Tokens a second that are expected."""
    seconds: float
    counts: list[int]
    """For each sequence."""
    gains: list[float]
    """Tokens that each may expect."""


def offers_of(chance: float, most: int, place: int, *, by_model: bool = False) -> list[Offer]:
    """At most so many entries for one sequence, each with this chance if the one before it has come out."""
    offers: list[Offer] = []
    reached = chance
    while len(offers) < most and reached >= _LEAST_CHANCE:
        offers.append((reached, place, len(offers) + 1 if by_model else 0))
        reached *= chance
    return offers


def best_plan(offers: Sequence[list[Offer]], seconds: list[float], pass_s: float = 0.0) -> Plan:
    """As many of the offers, the best ones, as make the most tokens a second.

    Args:
        offers: for each sequence of the step.
        seconds: of a step with 0, 1, 2 … drafted entries.
        pass_s: of one pass of the model that drafts, for all sequences at once.
    """
    ranked = sorted(chain.from_iterable(offers), reverse=True)
    num_sequences = len(offers)
    plain_s = seconds[0]
    gains = [1.0] * num_sequences
    expected, num_passes = float(num_sequences), 0
    best, best_s, num_taken = WORTHWHILE * num_sequences / plain_s, plain_s, 0
    for count, (chance, place, needed) in enumerate(ranked[: len(seconds) - 1], 1):
        expected += chance
        gains[place] += chance
        num_passes = max(num_passes, needed)
        step_s = seconds[count] + num_passes * pass_s
        if expected > best * step_s and step_s <= _PATIENCE * min(gains) * plain_s:
            best, best_s, num_taken = expected / step_s, step_s, count
    counts, gains = [0] * num_sequences, [1.0] * num_sequences
    for chance, place, _ in ranked[:num_taken]:
        counts[place] += 1
        gains[place] += chance
    return Plan(best if num_taken else num_sequences / plain_s, best_s, counts, gains)


def may_pay(num_sequences: int, seconds: list[float]) -> bool:
    """A draft would be worth its time if all of it came out."""
    worth = WORTHWHILE * num_sequences / seconds[0]
    return any(num_sequences + count > worth * seconds[count] for count in range(1, len(seconds)))
