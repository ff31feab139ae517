"""How many entries are drafted for each sequence of a step of decodes: as many as make the most tokens a second.

```
    drafted for a sequence   1st     2nd     3rd  …       a token more is expected with chance
    comes out with chance    p       p·p     p·p·p        as it is written here
```

A draft is computed with the last entry, in one chunk of several rows. Each row is sampled as it would be without, as
long as the one before gave what was drafted: the answer is the same to the bit. What was drafted wrongly is cut off.

The chance is learned, for each sequence and length of the match that led to the draft; what the rows cost is measured
(`draft_times`). Drafts that would not pay, as in a step that already waits for arithmetic, are not made; nor are those
for which another sequence, that has nothing to gain, would have to wait long.
Speculative decoding: arXiv:2211.17192.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered

from stoker.core.batch import Entry
from stoker.core.draft_times import DraftTimes
from stoker.core.drafter import CERTAIN, Drafter
from stoker.core.sequence import Sequence

MAX_DRAFTED = 64
"""In one step, for all sequences together."""
_USUAL = (0.25, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95)
"""Chances behind matches of 1 … `MAX_MATCH` entries, and of what is certain, before anything is known."""
_GAIN, _SLOW_GAIN = 0.2, 0.02
"""Part of a surprise that changes the chances of a sequence, and what the next ones begin with."""
_NEIGHBOUR = 0.5
"""How much less a match one longer or shorter learns from it."""
_FORGIVENESS = 0.01
"""Part of the way back to the usual chance, for each step in which nothing was drafted although it could have been."""
_LEAST_CHANCE = 0.05
"""Of all that is drafted for a sequence to come out."""
_WORTHWHILE = 1.06
"""So many times the tokens a second are worth a draft: times are not known better."""
_PATIENCE = 1.2
"""No sequence is expected to take so many times as long for its tokens, because others are drafted for."""
_REST = 4
"""For so many sequences a step passes until drafts are thought of again, if there were none: that takes time, too."""
_SICK_LEAVE = 1024
"""Steps without drafts, after a step with drafts has failed."""


class Speculation:
    """Drafts for sequences that decode, and what became of them. One per scheduler.

    Args:
        most: entries to draft for one sequence in one step; 0 = none.
        max_entries: of one step, drafted or not.
    """

    def __init__(self, most: int, max_entries: int) -> None:
        self._most = most
        self._max_entries = max_entries
        self._usual = list(_USUAL)
        self._times = DraftTimes()
        self._num_resting = 0
        """Steps in which nothing is to be drafted."""
        self.num_drafts = 0
        self.num_drafted = 0
        """Entries of them."""
        self.num_accepted = 0
        """Entries that came out."""

    def begin_step(self) -> int:
        """A step of decodes is to be planned. Returns how many entries one sequence may want; 0 = none are wanted."""
        if self._num_resting > 0:
            self._num_resting -= 1
            return 0
        return self._most

    def drafts(self, sequences: Ordered[Sequence], room: int) -> list[list[Entry]] | None:
        """What to compute behind the last entry of each sequence; None = nothing behind any.

        Args:
            sequences: each has one pending entry.
            room: cells of the pool for the whole step.
        """
        num_sequences = len(sequences)
        room = min(MAX_DRAFTED, self._most * num_sequences, min(room, self._max_entries) - num_sequences)
        seconds = self._times.curve(num_sequences, room) if room > 0 else []
        if len(seconds) < 2 or not _may_pay(num_sequences, seconds):
            self._num_resting = num_sequences // _REST
            return None
        offers = [offer for index, sequence in enumerate(sequences) for offer in self._offers(index, sequence)]
        offers.sort(reverse=True)
        counts = _choose(offers, seconds, num_sequences)
        if not any(counts):
            self._num_resting = num_sequences // _REST
            self._forgive(sequences)
            return None
        return [self._draft(sequence, count) for sequence, count in zip(sequences, counts, strict=True)]

    def forget_counts(self) -> None:
        """Counts anew; what was learned stays."""
        self.num_drafts = self.num_drafted = self.num_accepted = 0

    def has_failed(self) -> None:
        """A step with drafts could not be computed, as when there was no memory for its rows."""
        self._num_resting = _SICK_LEAVE

    def observe(self, sequence: Sequence, num_drafted: int, num_accepted: int, *, is_over: bool = False) -> None:
        """So many of the entries that were drafted for a sequence came out.

        Args:
            is_over: the sequence has ended with them; else the next one was wrong, if there was one.
        """
        drafter = sequence.drafter
        if num_drafted == 0 or drafter is None:
            return
        self.num_drafts += 1
        self.num_drafted += num_drafted
        self.num_accepted += num_accepted
        drafter.num_drafted += num_drafted
        drafter.num_accepted += num_accepted
        outcomes = [1.0] * num_accepted + [0.0] * (num_accepted < num_drafted and not is_over)
        at = drafter.match - 1
        for outcome in outcomes:
            self._usual[at] += _SLOW_GAIN * (outcome - self._usual[at])
            for index, chance in enumerate(drafter.chances):
                drafter.chances[index] = chance + _GAIN * _NEIGHBOUR ** abs(index - at) * (outcome - chance)

    def observe_step(self, num_sequences: int, num_drafted: int, step_s: float) -> None:
        """A step of decodes took so long."""
        if self._most > 0 and step_s > 0:
            self._times.observe(num_sequences, num_drafted, step_s)

    def withdraw(self, sequence: Sequence, num_accepted: int) -> None:
        """So many entries that came out are not part of the answer: they stand behind its end."""
        self.num_accepted -= num_accepted
        if sequence.drafter is not None:
            sequence.drafter.num_accepted -= num_accepted

    def _offers(self, index: int, sequence: Sequence) -> list[tuple[float, int]]:
        """Chances that a sequence gets a first, second … token more, each with its index."""
        if sequence.drafter is None:
            sequence.drafter = Drafter(sequence.entries, list(self._usual), sequence.guide)
        most = min(self._most, sequence.max_entries - len(sequence.entries) - 1)
        if most <= 0:
            sequence.drafter.match = 0
            return []
        chance, most = sequence.drafter.look(most)
        offers: list[tuple[float, int]] = []
        reached = chance
        while len(offers) < most and reached >= _LEAST_CHANCE:
            offers.append((reached, index))
            reached *= chance
        return offers

    def _draft(self, sequence: Sequence, count: int) -> list[Entry]:
        assert sequence.drafter is not None
        return sequence.drafter.guess(count) if count else []

    def _forgive(self, sequences: Ordered[Sequence]) -> None:
        """Chances that are too low for a draft would stay so for ever."""
        for sequence in sequences:
            drafter = sequence.drafter
            if drafter is not None and drafter.match:
                at = drafter.match - 1
                drafter.chances[at] += _FORGIVENESS * (_USUAL[at] - drafter.chances[at])


def _choose(offers: list[tuple[float, int]], seconds: list[float], num_sequences: int) -> list[int]:
    """How many of the offers, which begin with the best, make the most tokens a second: for each sequence a number."""
    gains = [1.0] * num_sequences
    expected, best, num_taken = float(num_sequences), _WORTHWHILE * num_sequences / seconds[0], 0
    for count, (chance, index) in enumerate(offers[: len(seconds) - 1], 1):
        expected += chance
        gains[index] += chance
        if expected > best * seconds[count] and seconds[count] <= _PATIENCE * min(gains) * seconds[0]:
            best, num_taken = expected / seconds[count], count
    counts = [0] * num_sequences
    for _, index in offers[:num_taken]:
        counts[index] += 1
    return counts


def _may_pay(num_sequences: int, seconds: list[float]) -> bool:
    """A draft would be worth its time if all of it came out."""
    worth = _WORTHWHILE * num_sequences / seconds[0]
    return any(num_sequences + count > worth * seconds[count] for count in range(1, len(seconds)))


assert len(_USUAL) == CERTAIN
