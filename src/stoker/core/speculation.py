"""Speculative decoding: decides how many entries are drafted for each sequence, to maximize tokens per second.

```
    drafted entry            1st     2nd     3rd  …       the expected number of additional tokens is the sum
    accepted with chance     p       p·p     p·p·p        of these probabilities
```

A draft is computed together with the last entry, in one chunk with several rows of logits. Rows are sampled as usual as
long as the row before gave the drafted token: the answer is the same to the bit. Rejected entries are cut off.

The chance p is learned for each sequence and each length of the match that led to the draft; the cost of the rows is
measured (`draft_times`). Drafts that do not pay, such as in a step bound by arithmetic, are not made; nor are drafts
that would slow down another sequence, which gains nothing, too much.
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
"""Maximum number of drafted entries in one step, for all sequences together."""
_USUAL = (0.25, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95, 0.7)
"""Initial acceptance probabilities: after matches of 1 … `MAX_MATCH` entries, of text forced by a grammar (`CERTAIN`),
and of drafts by a model (`MODEL`)."""
_GAIN, _SLOW_GAIN = 0.2, 0.02
"""Learning rates of the probabilities of one sequence, and of those with which new sequences begin."""
_LEAST_MODEL_GAIN, _FIRST_MODEL_GAIN = 0.05, 2
"""Learning rate for a draft model: at least the first value; otherwise 1 / (the second value + the outcomes seen). The
first outcomes say much; later ones should not make the draft length oscillate."""
_SLOWER = 2
"""Factor on the assumed number of outcomes where later sequences learn from them."""
_SLOW_START = 2
"""Maximum draft length of a model for a sequence without accepted entries; it grows by two per accepted entry."""
_WORTH_A_MODEL = 1.12
"""Minimum speedup in tokens per second for drafts by a model: its first wrong drafts should cost little."""
_NEIGHBOUR = 0.5
"""Factor on the learning rate for each entry by which the match is longer or shorter than the observed one."""
_FORGIVENESS, _MODEL_FORGIVENESS, _USUAL_FORGIVENESS = 0.01, 0.002, 0.0001
"""Learning rates back to the initial probability in steps without drafts, so that drafts are tried again some time: for
the last match, for a model (less often, since its drafts take time), and for what new sequences begin with."""
_REST = 4
"""After a step without drafts, none are considered for one step per this number of sequences: that takes time, too."""
_SICK_LEAVE = 1024
"""Number of steps without drafts after a step with drafts has failed."""


@dataclass(slots=True)
class SourceCounts:
    """Numbers of drafted and of accepted entries from one source of drafts."""

    num_drafted: int = 0
    num_accepted: int = 0


class Speculation:
    """Drafts for decoding sequences, and the statistics of their acceptance. One instance per scheduler.

    Args:
        most: maximum number of drafted entries per sequence and step; 0 = no drafts.
        max_entries: maximum number of entries in a step, drafted or not.
        models: the draft model; None = drafts come from the sequence's own text and from its grammar only.
    """

    def __init__(self, most: int, max_entries: int, models: ModelDrafts | None = None) -> None:
        self._most = most
        self._max_entries = max_entries
        self._usual = list(_USUAL)
        self._times = DraftTimes()
        self._num_outcomes = 0
        """Number of entries drafted by the model whose acceptance is known."""
        self._num_resting = 0
        """Number of further steps in which nothing is drafted."""
        self.models = models
        self.forget_counts()

    def begin_step(self) -> int:
        """Called before a decode step is planned. Returns the maximum draft length per sequence; 0 = no drafts now."""
        if self._num_resting > 0:
            self._num_resting -= 1
            return 0
        return self._most

    def drafts(self, sequences: Ordered[Sequence], room: int) -> list[list[Entry]] | None:
        """The drafted entries to compute after the last entry of each sequence; None = no drafts at all.

        Args:
            sequences: sequences with one pending entry each.
            room: free cells of the pool for the whole step.
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
        """Resets the counters; the learned probabilities stay."""
        self.num_drafts = self.num_drafted = self.num_accepted = 0
        """Numbers of drafts, of their entries, and of the accepted entries."""
        self.by_source: dict[Source, SourceCounts] = {source: SourceCounts() for source in get_args(Source)}

    def has_failed(self) -> None:
        """Notes that a step with drafts failed, for example for lack of memory for its rows: drafts pause."""
        self._num_resting = _SICK_LEAVE

    def observe(self, sequence: Sequence, num_drafted: int, num_accepted: int, *, is_over: bool = False) -> None:
        """Learns how many of the drafted entries of a sequence were accepted.

        Args:
            is_over: the sequence ended with the accepted entries; otherwise the next drafted entry was wrong.
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
        """Learns the duration of a decode step."""
        if self._most > 0 and step_s > 0:
            self._times.observe(num_sequences, num_drafted, step_s)

    def withdraw(self, sequence: Sequence, num_accepted: int) -> None:
        """Subtracts accepted entries after the end of the answer from the counters."""
        self.num_accepted -= num_accepted
        if sequence.drafter is not None:
            sequence.drafter.num_accepted -= num_accepted
            self.by_source[sequence.drafter.source].num_accepted -= num_accepted

    def _offers(self, index: int, sequence: Sequence) -> list[Offer]:
        """The entries that the text of a sequence, or its grammar, offers as a draft."""
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
        """The better plan of `plain` and one with drafts by the model where they are more likely to be accepted.

        If the model lacks too many entries of a sequence, it computes some of them instead.
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
        """Raises probabilities a little, because a probability that is too low for drafts is never measured again."""
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
