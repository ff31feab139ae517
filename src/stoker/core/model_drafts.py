"""Measures the cost of a draft model's drafts, and decides whether starting to draft for a sequence pays. No clock.

```
    a step with drafts      pass | pass | pass | the step itself, with the drafted entries
                            of the draft model, for all sequences at once
```

A draft model needs the KV of all earlier entries. Missing entries of a sequence are computed in pieces, between the
steps, if drafts for the rest of the answer are likely to save more time than that takes.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from math import inf

from stoker.core.batch import Entry
from stoker.core.draft_port import Drafted, DraftPort
from stoker.core.sequence import Sequence
from stoker.core.step_cost import Rate

_AT_ONCE = 32
"""Maximum number of missing entries that the draft model computes together with a draft."""
_PIECE = 512
"""Maximum number of missing entries that the draft model computes between two steps."""
_USUAL_ANSWER = 256
"""Number of further entries expected of a sequence, if its length limit allows."""
_FIRST_SHARE = 0.1
"""Initial guess of a draft pass's cost, as a fraction of a step without drafts."""
_GAIN = 0.3
"""Learning rate: fraction of a prediction error that is corrected at once."""
_MAX_SURPRISE = 2.0
_FADING = 0.9995
"""Factor on the known cost of a pass after each step without one: one slow minute must not end drafts for good."""


class ModelDrafts:
    """The draft model of one scheduler, with its measured costs.

    Args:
        port: the draft model.
    """

    def __init__(self, port: DraftPort) -> None:
        self._port = port
        self._pass_s: dict[int, float] = {}
        """Seconds per draft pass, by number of sequences."""
        self._entry_s = Rate()
        self.seconds = 0.0
        """Total time spent in the draft model."""

    def missing(self, sequence: Sequence) -> int | None:
        """See `DraftPort.num_missing`."""
        return self._port.num_missing(sequence)

    def pass_s(self, num_sequences: int, step_s: float) -> float:
        """Expected seconds of one draft pass for `num_sequences`, if a step without drafts takes `step_s`."""
        known = self._pass_s.get(num_sequences)
        if known is None:
            nearest = min(self._pass_s, key=lambda count: abs(count - num_sequences), default=None)
            known = _FIRST_SHARE * step_s if nearest is None else self._pass_s[nearest]
        return known

    def is_ready(self, missing: int) -> bool:
        """A sequence with this number of missing entries can get a draft in this step."""
        return missing <= _AT_ONCE

    def catch_up(self, sequence: Sequence, missing: int, saved_s: float, patience_s: float) -> None:
        """Computes some of the missing entries of a sequence, if that pays.

        Args:
            sequence: a sequence that lacks more entries than can be computed together with a draft.
            missing: number of missing entries.
            saved_s: time that drafts save per entry of the answer.
            patience_s: how long other sequences may wait for the computation; infinity = there are none.
        """
        expected = min(_USUAL_ANSWER, sequence.max_entries - len(sequence.entries))
        if missing * (self._entry_s.entry_s or 0.0) > expected * saved_s:
            self._entry_s.fade()
            return
        piece = min(_PIECE, self._entry_s.affordable(patience_s, _AT_ONCE)) if patience_s < inf else _PIECE
        self._note(self._port.catch_up(sequence, max(_AT_ONCE, piece)))

    def draft(self, wanted: Ordered[tuple[Sequence, int]]) -> list[list[Entry]]:
        """See `DraftPort.draft`."""
        found = self._port.draft(wanted)
        self._note(found)
        if found.num_passes and found.num_caught_up <= 2 * len(wanted):
            self._learn_pass(len(wanted), found.seconds / found.num_passes)
        return found.drafts

    def rest(self) -> None:
        """Notes a step without drafts of the model."""
        for count in self._pass_s:
            self._pass_s[count] *= _FADING

    def _note(self, found: Drafted) -> None:
        self.seconds += found.seconds
        if found.num_passes == 0:
            self._entry_s.observe(found.num_caught_up, found.seconds)

    def _learn_pass(self, num_sequences: int, seconds: float) -> None:
        known = self._pass_s.get(num_sequences)
        if known is not None:
            seconds = known + _GAIN * (min(seconds, _MAX_SURPRISE * known) - known)
        self._pass_s[num_sequences] = seconds
