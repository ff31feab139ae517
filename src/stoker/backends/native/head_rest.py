"""When a draft head that is seldom asked for drafts stops computing the model's entries. It only counts."""

from __future__ import annotations

_PATIENCE = 4096
"""Entries that a head computes without being asked for a draft before it rests."""
_WORTH = 128
"""Entries whose computation by the head costs about as much time as one draft saves."""
_REST = 16 * _PATIENCE
"""Entries for which the head rests. A head that is never asked computes one entry in 17."""


class HeadRest:
    """Counts entries and drafts of one draft head, and decides when the head rests.

    ```
    awake      patience - 1 for each computed entry, + _WORTH for each draft, at most _PATIENCE; below 0 the head rests
    resting    until _REST entries have passed
    ```

    An entry of one of n decodes in a step counts as n entries, because drafts pay only with few sequences at a time.
    """

    def __init__(self) -> None:
        self._patience = _PATIENCE
        self._left = 0

    def sees(self, num_prompt: int, num_decode: int, num_decodes: int) -> bool:
        """Whether the head computes a step, given its entries of prompts and of decodes, and the number of decodes."""
        num_entries = num_prompt + num_decode * num_decodes
        if self._left > 0:
            self._left -= num_entries
            return False
        self._patience -= num_entries
        if self._patience >= 0:
            return True
        self._patience, self._left = _PATIENCE, _REST - num_entries
        return False

    def note_drafts(self, count: int) -> None:
        """Records that the head was asked for drafts of `count` sequences."""
        self._patience = min(_PATIENCE, self._patience + _WORTH * count)
