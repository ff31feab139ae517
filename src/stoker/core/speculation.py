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
from dataclasses import dataclass
from math import inf
from typing import get_args

from stoker.core.batch import Entry
from stoker.core.draft_plan import Offer, Plan, best_plan, may_pay, offers_of
from stoker.core.draft_times import DraftTimes
from stoker.core.drafter import CERTAIN, MODEL, Drafter, Source
from stoker.core.model_drafts import ModelDrafts
from stoker.core.sequence import Sequence

MAX_DRAFTED = 64
"""Drafted entries in one step, for all sequences together."""
_USUAL = (0.25, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95, 0.7)
"""Chances after matches of 1 … `MAX_MATCH` entries, of what is certain, and of what a model drafts, before anything is
known."""
_GAIN, _SLOW_GAIN = 0.2, 0.02
"""Part of a surprise that changes the chances of a sequence, and what the next ones begin with."""
_LEAST_MODEL_GAIN, _FIRST_MODEL_GAIN = 0.05, 2
"""Learning rate for a draft model: at least the first value; otherwise 1 / (the second value + the outcomes seen). The
 first outcomes say much; later ones should not make the draft length oscillate."""
_SLOWER = 2
"""Factor on the assumed number of outcomes where later sequences learn from them."""
_SLOW_START = 2
"""Entries that a model drafts at most for a sequence of which nothing has come out yet; then by two more for each."""
_WORTH_A_MODEL = 1.12
"""Speed-up in tokens per second from which a draft model pays: its first wrong drafts should cost little."""
_NEIGHBOUR = 0.5
"""How much less a match one longer or shorter learns from it."""
_FORGIVENESS, _MODEL_FORGIVENESS, _USUAL_FORGIVENESS = 0.01, 0.002, 0.0001
"""Part of the way back to the usual chance, for each step in which nothing was drafted although it could have been.
That of a model, whose drafts take time, is tried less often; what the next sequences begin with, still less."""
_REST = 4
"""For so many sequences a step passes until drafts are thought of again, if there were none: that takes time, too."""
_SICK_LEAVE = 1024
"""Steps without drafts, after a step with drafts has failed."""


@dataclass(slots=True)
class SourceCounts:
    """What became of the drafts from one source, in entries."""

    num_drafted: int = 0
    num_accepted: int = 0


class Speculation:
    """Drafts for sequences that decode, and what became of them. One per scheduler.

    Args:
        most: entries to draft for one sequence in one step; 0 = none.
        max_entries: of one step, drafted or not.
        models: what a model drafts; None = all drafts come from the text and from what is certain.
    """

    def __init__(self, most: int, max_entries: int, models: ModelDrafts | None = None) -> None:
        self._most = most
        self._max_entries = max_entries
        self._usual = list(_USUAL)
        self._times = DraftTimes()
        self._num_outcomes = 0
        """Of what a model has drafted."""
        self._num_resting = 0
        """Steps in which nothing is to be drafted."""
        self.models = models
        self.forget_counts()

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
        if len(seconds) < 2 or not may_pay(num_sequences, seconds):
            self._num_resting = num_sequences // _REST
            return None
        offers = [self._offers(index, sequence) for index, sequence in enumerate(sequences)]
        plan = best_plan(offers, seconds)
        if self.models is not None:
            plan = self._with_model(self.models, sequences, offers, seconds, plan)
        if not any(plan.counts):
            self._num_resting = num_sequences // _REST if self.models is None else 0
            self._forgive(sequences)
            return None
        return self._drafted(sequences, plan.counts)

    def forget_counts(self) -> None:
        """Counts anew; what was learned stays."""
        self.num_drafts = self.num_drafted = self.num_accepted = 0
        """Drafts, their entries, and those of them that came out."""
        self.by_source: dict[Source, SourceCounts] = {source: SourceCounts() for source in get_args(Source)}

    def has_failed(self) -> None:
        """A step with drafts could not be computed, as when there was no memory for its rows."""
        self._num_resting = _SICK_LEAVE

    def observe(self, sequence: Sequence, num_drafted: int, num_accepted: int, *, is_over: bool = False) -> None:
        """Learns how many of the drafted entries of a sequence were accepted.

        Args:
            is_over: the sequence ended with them; otherwise the first entry after them, if any, was wrong.
        """
        drafter = sequence.drafter
        if num_drafted == 0 or drafter is None:
            return
        self.num_drafts += 1
        self.num_drafted += num_drafted
        self.num_accepted += num_accepted
        drafter.num_drafted += num_drafted
        drafter.num_accepted += num_accepted
        counts = self.by_source[drafter.source]
        counts.num_drafted += num_drafted
        counts.num_accepted += num_accepted
        self._learn(drafter, [1.0] * num_accepted + [0.0] * (num_accepted < num_drafted and not is_over))

    def observe_step(self, num_sequences: int, num_drafted: int, step_s: float) -> None:
        """A step of decodes took so long."""
        if self._most > 0 and step_s > 0:
            self._times.observe(num_sequences, num_drafted, step_s)

    def withdraw(self, sequence: Sequence, num_accepted: int) -> None:
        """Takes back accepted entries that are not part of the answer: they follow its end."""
        self.num_accepted -= num_accepted
        if sequence.drafter is not None:
            sequence.drafter.num_accepted -= num_accepted
            self.by_source[sequence.drafter.source].num_accepted -= num_accepted

    def _offers(self, index: int, sequence: Sequence) -> list[Offer]:
        """What the text offers for a sequence."""
        if sequence.drafter is None:
            sequence.drafter = Drafter(sequence.entries, list(self._usual), sequence.guide)
        most = self._most_for(sequence)
        if most <= 0:
            sequence.drafter.match = 0
            return []
        chance, most = sequence.drafter.look(most)
        return offers_of(chance, most, index)

    def _most_for(self, sequence: Sequence) -> int:
        return min(self._most, sequence.max_entries - len(sequence.entries) - 1)

    def _with_model(
        self,
        models: ModelDrafts,
        sequences: Ordered[Sequence],
        offers: list[list[Offer]],
        seconds: list[float],
        plain: Plan,
    ) -> Plan:
        """The better plan of `plain` and one in which the model drafts where it has better chances than the text.

        A sequence of which the model has not seen enough yet is shown some of it instead.
        """
        least = _WORTH_A_MODEL * plain.rate
        pass_s = models.pass_s(len(sequences), seconds[0])
        by_model = {
            index: its
            for index, sequence in enumerate(sequences)
            if (its := self._model_offers(index, sequence))[:1] > offers[index][:1]
        }
        missing = {index: models.missing(sequences[index]) for index in by_model}
        by_model = {index: its for index, its in by_model.items() if missing[index] is not None}
        plan = best_plan([by_model.get(index, its) for index, its in enumerate(offers)], seconds, pass_s)
        late = {index: it for index, it in missing.items() if it and plan.counts[index] and not models.is_ready(it)}
        if plan.rate > least and late:
            index, num_missing = next(iter(late.items()))
            saved_s = seconds[0] - plan.seconds / plan.gains[index]
            models.catch_up(sequences[index], num_missing, saved_s, inf if len(sequences) == 1 else seconds[0])
            by_model = {index: its for index, its in by_model.items() if index not in late}
            plan = best_plan([by_model.get(index, its) for index, its in enumerate(offers)], seconds, pass_s)
        if plan.rate <= least or not any(plan.counts[index] for index in by_model):
            models.rest()
            return plain
        for index in by_model:
            drafter = sequences[index].drafter
            assert drafter is not None, "an offer was made for it"
            drafter.match = MODEL
        return plan

    def _model_offers(self, index: int, sequence: Sequence) -> list[Offer]:
        drafter = sequence.drafter
        if drafter is None or drafter.match == CERTAIN:
            return []
        if drafter.num_outcomes == 0 and drafter.num_known != self._num_outcomes:
            drafter.num_known, drafter.chances[MODEL - 1] = self._num_outcomes, self._usual[MODEL - 1]
        most = min(self._most_for(sequence), _SLOW_START + 2 * drafter.num_accepted)
        return offers_of(drafter.chances[MODEL - 1], most, index, by_model=True)

    def _drafted(self, sequences: Ordered[Sequence], counts: list[int]) -> list[list[Entry]]:
        """`counts` drafted entries for each sequence, from the drafter that offered them."""
        wanted: list[tuple[Sequence, int]] = []
        found: dict[int, list[Entry]] = {}
        for index, (sequence, count) in enumerate(zip(sequences, counts, strict=True)):
            assert sequence.drafter is not None
            if count and sequence.drafter.match == MODEL:
                wanted.append((sequence, count))
            else:
                found[index] = sequence.drafter.guess(count) if count else []
        drafts = iter(self._drafted_by_model(wanted) if wanted else ())
        return [found[index] if index in found else next(drafts) for index in range(len(sequences))]

    def _drafted_by_model(self, wanted: list[tuple[Sequence, int]]) -> list[list[Entry]]:
        assert self.models is not None
        possible: list[list[Entry]] = []
        for (sequence, _), draft in zip(wanted, self.models.draft(wanted), strict=True):
            assert sequence.drafter is not None
            possible.append(sequence.drafter.possible(draft))
            if draft and not possible[-1]:
                self._learn(sequence.drafter, [0.0])
        return possible

    def _learn(self, drafter: Drafter, outcomes: list[float]) -> None:
        if drafter.match == MODEL:
            self._learn_of_model(drafter, outcomes)
            return
        at = drafter.match - 1
        for outcome in outcomes:
            self._usual[at] += _SLOW_GAIN * (outcome - self._usual[at])
            for index, chance in enumerate(drafter.chances[: MODEL - 1]):
                drafter.chances[index] = chance + _GAIN * _NEIGHBOUR ** abs(index - at) * (outcome - chance)

    def _learn_of_model(self, drafter: Drafter, outcomes: list[float]) -> None:
        for outcome in outcomes:
            drafter.num_outcomes += 1
            self._num_outcomes += 1
            gain = 1 / (_FIRST_MODEL_GAIN + drafter.num_outcomes)
            slow_gain = 1 / (_SLOWER * (_FIRST_MODEL_GAIN + self._num_outcomes))
            drafter.chances[-1] += max(_LEAST_MODEL_GAIN, gain) * (outcome - drafter.chances[-1])
            self._usual[-1] += max(_LEAST_MODEL_GAIN, slow_gain) * (outcome - self._usual[-1])

    def _forgive(self, sequences: Ordered[Sequence]) -> None:
        """Chances that are too low for a draft would stay so for ever."""
        for sequence in sequences:
            drafter = sequence.drafter
            if drafter is None:
                continue
            if drafter.match:
                at = drafter.match - 1
                drafter.chances[at] += _FORGIVENESS * (_USUAL[at] - drafter.chances[at])
            drafter.chances[-1] += _MODEL_FORGIVENESS * (_USUAL[-1] - drafter.chances[-1])
            self._usual[-1] += _USUAL_FORGIVENESS * (_USUAL[-1] - self._usual[-1])


assert len(_USUAL) == MODEL
