"""Tracks which image rows the backend holds and which sequences wait for others. It requests rows, it makes none."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from stoker.core.media import Span
from stoker.core.population import RANK
from stoker.core.sequence import Sequence


class MediaRows:
    """The image rows of one scheduler: wanted once a running sequence needs them, dropped once none does any more."""

    def __init__(self) -> None:
        self.is_used = False
        """A request with media was added. Before that, no rows are wanted or given up."""
        self._held: set[bytes] = set()
        self._asked: dict[bytes, str] = {}
        """Rows that were requested and have not arrived: key of the media to the request that asked."""

    def limit(self, sequence: Sequence) -> int:
        """Number of entries that can be computed now: those before the first span whose rows are missing."""
        for start, span in sequence.request.spans:
            if start + span.length > sequence.num_computed and span.key not in self._held:
                return start
        return sys.maxsize

    def can_go_on(self, sequence: Sequence) -> bool:
        """The next entry of a running sequence can be computed."""
        return self.limit(sequence) > sequence.num_computed

    def is_waited_for(self, running: Iterable[Sequence]) -> bool:
        """Some running sequence cannot continue before image rows arrive."""
        return any(not self.can_go_on(sequence) for sequence in running)

    def wanted(self, running: Iterable[Sequence]) -> list[tuple[str, Span]]:
        """The spans to request now, each only once, with the id of the request that needs it. Higher ranks first."""
        found: list[tuple[str, Span]] = []
        for sequence in sorted((s for s in running if s.request.spans), key=RANK):
            reached = max(sequence.num_computed, sequence.num_restorable)
            for start, span in sequence.request.spans:
                if start + span.length > reached and span.key not in self._held and span.key not in self._asked:
                    self._asked[span.key] = sequence.request.request_id
                    found.append((sequence.request.request_id, span))
        return found

    def arrived(self, key: bytes) -> None:
        """Notes that the backend holds these rows from now on."""
        self._asked.pop(key, None)
        self._held.add(key)

    def given_up(self, running: Iterable[Sequence]) -> set[bytes]:
        """Keys of rows that no running sequence has still to compute, so that the backend can drop them."""
        if not self._held:
            return set()
        needed = {
            span.key
            for sequence in running
            for start, span in sequence.request.spans
            if start + span.length > sequence.num_computed
        }
        dropped = self._held - needed
        self._held -= dropped
        return dropped

    def forget(self, request_id: str) -> None:
        """Notes that a request has ended: rows that it had requested are requested again if another one needs them."""
        if self._asked:
            self._asked = {key: owner for key, owner in self._asked.items() if owner != request_id}
