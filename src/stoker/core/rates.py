"""What an entry costs: a moving average of measured durations. It has no clock."""

from __future__ import annotations

_WEIGHT = 0.3


class Rate:
    """Seconds per entry of one kind of work, learned from how long it really takes."""

    def __init__(self) -> None:
        self.entry_s: float | None = None
        """None until something was measured."""

    def observe(self, num_entries: int, seconds: float) -> None:
        """Learns that `num_entries` took so long. Nothing is learned from nothing."""
        if num_entries < 1 or seconds <= 0:
            return
        entry_s = seconds / num_entries
        self.entry_s = entry_s if self.entry_s is None else self.entry_s + _WEIGHT * (entry_s - self.entry_s)

    def affordable(self, seconds: float, first_guess: int) -> int:
        """How many entries fit into so many seconds."""
        return first_guess if self.entry_s is None else int(seconds / self.entry_s)

    def fade(self) -> None:
        """Becomes a little cheaper: what is never tried, because it was dear once, is tried again some time."""
        if self.entry_s is not None:
            self.entry_s *= 0.95
