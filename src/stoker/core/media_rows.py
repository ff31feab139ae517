"""Which rows of images the backend holds, and who waits for others. It asks for rows, and makes none."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from stoker.core.media import Span
from stoker.core.population import RANK
from stoker.core.sequence import Sequence


class MediaRows:
    """One per scheduler. Rows are wanted when a running sequence needs them, and given up when none does any more."""

    def __init__(self) -> None:
        self.is_used = False
        """A request with media was added. Until then no rows are wanted, and none given up."""
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
        """Some running sequence cannot go on before rows have come."""
        return any(not self.can_go_on(sequence) for sequence in running)

    def wanted(self, running: Iterable[Sequence]) -> list[tuple[str, Span]]:
        """What to ask for now, each once: the request that needs it, and the span. Higher ranks come first."""
        found: list[tuple[str, Span]] = []
        for sequence in sorted((s for s in running if s.request.spans), key=RANK):
            reached = max(sequence.num_computed, sequence.num_restorable)
            for start, span in sequence.request.spans:
                if start + span.length > reached and span.key not in self._held and span.key not in self._asked:
                    self._asked[span.key] = sequence.request.request_id
                    found.append((sequence.request.request_id, span))
        return found

    def arrived(self, key: bytes) -> None:
        """The backend holds these rows from now on."""
        self._asked.pop(key, None)
        self._held.add(key)

    def given_up(self, running: Iterable[Sequence]) -> set[bytes]:
        """What no running sequence has still to compute; the backend need not hold it any more."""
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
        """A request has ended: what was asked for it is asked for anew if another one needs it."""
        if self._asked:
            self._asked = {key: owner for key, owner in self._asked.items() if owner != request_id}
