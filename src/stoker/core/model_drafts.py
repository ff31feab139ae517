"""What drafts of a model cost, as it was measured lately, and whether it is worth while to begin with them.

```
    a step with drafts      pass | pass | pass | the step itself, with so many entries more
                            of the drafting model, all sequences at once
```

A model that drafts must have computed what stands before. What is missing of a sequence is computed in pieces, between
the steps, once that is likely to be earned back with the rest of the answer. It has no clock.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from math import inf

from stoker.core.batch import Entry
from stoker.core.draft_port import Drafted, DraftPort
from stoker.core.sequence import Sequence
from stoker.core.step_cost import Rate

_AT_ONCE = 32
"""Entries that may be missing of a sequence when it is drafted for: those that came without drafts, and a few more."""
_PIECE = 512
"""Entries that the draft model catches up on between two steps."""
_USUAL_ANSWER = 256
"""Number of further entries expected of a sequence, if its length limit allows."""
_FIRST_SHARE = 0.1
"""Initial guess of a draft pass's cost, as a fraction of a step without drafts."""
_GAIN = 0.3
"""Part of an error that is corrected at once."""
_MAX_SURPRISE = 2.0
_FADING = 0.9995
"""A pass that was dear becomes cheaper with each step without one: one bad minute shall not end them."""


class ModelDrafts:
    """One per scheduler with a model that drafts.

    Args:
        port: the model.
    """

    def __init__(self, port: DraftPort) -> None:
        self._port = port
        self._pass_s: dict[int, float] = {}
        """By the number of sequences."""
        self._entry_s = Rate()
        self.seconds = 0.0
        """Spent so far."""

    def missing(self, sequence: Sequence) -> int | None:
        """See `DraftPort.num_missing`."""
        return self._port.num_missing(sequence)

    def pass_s(self, num_sequences: int, step_s: float) -> float:
        """Seconds of one pass for so many sequences, where a step without drafts takes `step_s`."""
        known = self._pass_s.get(num_sequences)
        if known is None:
            nearest = min(self._pass_s, key=lambda count: abs(count - num_sequences), default=None)
            known = _FIRST_SHARE * step_s if nearest is None else self._pass_s[nearest]
        return known

    def is_ready(self, missing: int) -> bool:
        """A sequence of which so much is missing can be drafted for in this step."""
        return missing <= _AT_ONCE

    def catch_up(self, sequence: Sequence, missing: int, saved_s: float, patience_s: float) -> None:
        """Computes some of what is missing, if that pays.

        Args:
            sequence: of which more is missing than can be computed with a draft.
            missing: entries.
            saved_s: for each entry of the answer, once it is ready.
            patience_s: how long others may wait for it.
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
        """A step passes without any."""
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
