"""Speculative decoding with a draft head of the model itself, through the same port as a separate draft model."""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Sequence as Ordered

from stoker.backends.base import DraftHeadPort, Logits
from stoker.core.batch import Entry
from stoker.core.draft_port import Drafted
from stoker.core.sequence import Sequence
from stoker.engine.draft_model import GuessOfSequences
from stoker.errors import BackendError

logger = logging.getLogger(__name__)

_FEW_ROWS = 16
"""Rows of one tile of a backend's matrix multiplication: fewer rows take about as long."""


class HeadDrafts:
    """A `DraftPort` that drafts with a draft head. The head follows the model in a slot or cannot draft for it, so that
    it never has to catch up.

    Args:
        port: the draft head; this object does not close it.
        max_tokens: maximum length of a sequence.
        guess: chooses a likely token for each sequence from its logits.
        clock: seconds; only differences count.
    """

    def __init__(
        self, port: DraftHeadPort, max_tokens: int, guess: GuessOfSequences, clock: Callable[[], float]
    ) -> None:
        self._port = port
        self._guess = guess
        self._max_tokens = max_tokens
        self._clock = clock
        self._is_broken = False

    def num_missing(self, sequence: Sequence) -> int | None:
        """See `DraftPort.num_missing`."""
        if sequence.slot is None or sequence.num_pending != 1 or sequence.entries[-1] < 0 or self._is_broken:
            return None
        is_possible = len(sequence.entries) < self._max_tokens and self._port.can_draft(sequence.slot)
        return 0 if is_possible else None

    def catch_up(self, sequence: Sequence, most: int) -> Drafted:
        """See `DraftPort.catch_up`."""
        return Drafted([], 0, 0, 0.0)

    def draft(self, wanted: Ordered[tuple[Sequence, int]]) -> Drafted:
        """See `DraftPort.draft`."""
        began = self._clock()
        asked: list[tuple[int, int, Entry, int]] = []
        for sequence, most in wanted:
            assert sequence.slot is not None, "nothing is offered for it"
            end = len(sequence.entries)
            asked.append((sequence.slot, end - 1, sequence.entries[-1], min(most, self._max_tokens - end)))
        # A few rows take as long as one. Many rows, as of a prompt, take longer: that pass is reported as catching up.
        num_waiting = sum(self._port.num_waiting(slot) for slot, _, _, _ in asked)
        num_caught_up = num_waiting if num_waiting > _FEW_ROWS else 0
        by_slot = {sequence.slot: sequence for sequence, _ in wanted}

        def guess(logits: Logits, places: Ordered[tuple[int, int]]) -> list[Entry]:
            return self._guess(logits, [(by_slot[slot], ahead) for slot, ahead in places])

        try:
            drafts = self._port.draft(asked, guess)
        except BackendError as error:
            logger.warning("the draft head of the model is turned off: %s", error.message)
            self._is_broken = True
            return Drafted([[] for _ in wanted], 0, 0, 0.0)
        return Drafted(drafts, max(map(len, drafts), default=0), num_caught_up, self._clock() - began)

    def warm_up(self) -> None:
        """See `DraftPort.warm_up`."""
        self._port.draft([(0, 0, 0, 1)])

    def close(self) -> None:
        """See `DraftPort.close`."""
