"""Speculative decoding: chooses which possible drafts of a step maximize the tokens per second. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple, TypeAlias

WORTHWHILE = 1.06
"""Minimum speedup in tokens per second for which drafts are made; step times are not known more precisely."""
_PATIENCE = 1.2
"""Upper bound on the expected slowdown of any sequence because others are drafted for, as a factor."""
_LEAST_CHANCE = 0.05
"""Minimum probability that an entry and all drafted entries before it are accepted."""


Offer: TypeAlias = tuple[float, int, int]
"""One entry that could be drafted: the probability that it and all drafted entries before it are accepted; the index of
its sequence in the step; and the number of draft model passes for this entry and those before it (0 = no model).
"""


class Plan(NamedTuple):
    """The number of entries to draft for each sequence of a step, and the expected result."""

    rate: float
    """Expected tokens per second of all sequences together."""
    seconds: float
    counts: list[int]
    """Number of entries to draft, for each sequence."""
    gains: list[float]
    """Expected number of tokens, for each sequence."""


def offers_of(chance: float, most: int, place: int, *, by_model: bool = False) -> list[Offer]:
    """Up to `most` entries for one sequence, each accepted with probability `chance` if the entry before it is."""
    offers: list[Offer] = []
    reached = chance
    while len(offers) < most and reached >= _LEAST_CHANCE:
        offers.append((reached, place, len(offers) + 1 if by_model else 0))
        reached *= chance
    return offers


def best_plan(offers: Sequence[list[Offer]], seconds: list[float], pass_s: float = 0.0) -> Plan:
    """The plan with the most expected tokens per second: takes the most probable offers, as many as pay.

    Args:
        offers: the possible drafts of each sequence of the step.
        seconds: duration of a step with 0, 1, 2 … drafted entries.
        pass_s: duration of one forward pass of the draft model, for all sequences at once.
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
    """Whether drafts would pay if all drafted entries were accepted."""
    worth = WORTHWHILE * num_sequences / seconds[0]
    return any(num_sequences + count > worth * seconds[count] for count in range(1, len(seconds)))
