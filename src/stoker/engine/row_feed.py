"""Feeds rows (embeddings) of images to a backend: requests them for running requests, drops those not needed."""

from __future__ import annotations

import numpy as np

from stoker.backends.base import RowsPort
from stoker.core.scheduler import Scheduler
from stoker.engine.protocol import Event, RowsWanted


class RowFeed:
    """Requests and receives the rows of one engine's images. Belongs to the thread that steps.

    Args:
        port: holds rows in the backend.
        scheduler: knows which rows its requests need.
    """

    def __init__(self, port: RowsPort, scheduler: Scheduler) -> None:
        self._port = port
        self._scheduler = scheduler

    def ask(self) -> list[Event]:
        """After scheduling: drops rows that no request needs any more, and returns events that ask for missing rows."""
        if not self._scheduler.media.is_used:
            return []
        for key in self._scheduler.rows_given_up():
            self._port.drop_rows(key)
        return [RowsWanted(request_id, span.key) for request_id, span in self._scheduler.rows_wanted()]

    def take(self, key: bytes, values: bytes) -> None:
        """Takes the rows of one span: little-endian 4-byte floats, row after row."""
        rows = np.frombuffer(values, dtype="<f4").reshape(-1, self._port.row_width)
        self._port.hold_rows(key, rows)
        self._scheduler.media.arrived(key)


class NoRows:
    """In place of `RowFeed` for a backend that computes token ids only."""

    def ask(self) -> list[Event]:
        return []

    def take(self, key: bytes, values: bytes) -> None:
        """Ignores rows: this feed requests none."""
