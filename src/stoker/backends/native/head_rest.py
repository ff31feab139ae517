"""When a draft head that is not asked stops seeing what the model computes. It knows no head."""

from __future__ import annotations

_PATIENCE = 4096
"""Entries that a head sees without being asked before it rests."""
_WORTH = 128
"""Entries that one draft is worth: to see them costs about as much time as it saves."""
_REST = 16 * _PATIENCE
"""Entries for which it rests. A head that is never asked sees one entry in 17."""


class HeadRest:
    """Counts entries and drafts of one head.

    ```
    awake      patience - 1 for each entry that is seen, + _WORTH for each draft, at most _PATIENCE; below 0 it rests
    resting    until _REST entries have passed
    ```

    An entry of one of n decodes in a step counts as n entries: drafts pay for few sequences at a time.
    """

    def __init__(self) -> None:
        self._patience = _PATIENCE
        self._left = 0

    def sees(self, num_prompt: int, num_decode: int, num_decodes: int) -> bool:
        """Whether the head sees a step: entries of prompts, those of all decodes, and how many decodes there are."""
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
        """The head was asked for drafts, for so many sequences."""
        self._patience = min(_PATIENCE, self._patience + _WORTH * count)
