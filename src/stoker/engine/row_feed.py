"""Rows of images on their way into an engine: asked for when a running request needs them, dropped when none does."""

from __future__ import annotations

import numpy as np

from stoker.backends.base import RowsPort
from stoker.core.scheduler import Scheduler
from stoker.engine.protocol import Event, RowsWanted


class RowFeed:
    """Belongs to the thread that steps.

    Args:
        port: of the backend.
        scheduler: says whose rows are needed.
    """

    def __init__(self, port: RowsPort, scheduler: Scheduler) -> None:
        self._port = port
        self._scheduler = scheduler

    def ask(self) -> list[Event]:
        """After a step was planned: drops what is not needed any more, and asks for what is."""
        if not self._scheduler.media.is_used:
            return []
        for key in self._scheduler.rows_given_up():
            self._port.drop_rows(key)
        return [RowsWanted(request_id, span.key) for request_id, span in self._scheduler.rows_wanted()]

    def take(self, key: bytes, values: bytes) -> None:
        """Rows have come: numbers of 4 bytes, row after row."""
        rows = np.frombuffer(values, dtype="<f4").reshape(-1, self._port.row_width)
        self._port.hold_rows(key, rows)
        self._scheduler.media.arrived(key)


class NoRows:
    """In place of the feed of a backend that computes token ids only."""

    def ask(self) -> list[Event]:
        return []

    def take(self, key: bytes, values: bytes) -> None:
        """Ignores rows: this feed requests none."""
