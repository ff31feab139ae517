"""Who waits, and whose turn is next: by priority, then fairly between client keys, then in order of arrival."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice

from stoker.core.sequence import Sequence


class WaitingQueue:
    """Sequences without a slot.

    Fairness is by tokens: the client whose sequences were given the fewest tokens comes first. A client that was
    away comes back level with those who are here, so nobody saves up a claim by staying idle.
    """

    def __init__(self) -> None:
        self._clients: dict[int, dict[str, deque[Sequence]]] = {}
        self._served: dict[str, int] = {}
        self._len = 0

    def __len__(self) -> int:
        return self._len

    def __iter__(self) -> Iterator[Sequence]:
        for clients in self._clients.values():
            for queue in clients.values():
                yield from queue

    def push(self, sequence: Sequence, active_clients: set[str]) -> None:
        """Adds a new sequence at the end of its client's queue."""
        self._level(sequence.request.client_key, active_clients)
        self._queue_of(sequence).append(sequence)
        self._len += 1

    def push_front(self, sequence: Sequence) -> None:
        """Puts a preempted sequence before everything else of its client."""
        self._queue_of(sequence).appendleft(sequence)
        self._len += 1

    def remove(self, sequence: Sequence) -> None:
        clients = self._clients[sequence.request.priority]
        queue = clients[sequence.request.client_key]
        queue.remove(sequence)
        if not queue:
            del clients[sequence.request.client_key]
        if not clients:
            del self._clients[sequence.request.priority]
        self._len -= 1

    def charge(self, client_key: str, num_tokens: int) -> None:
        """Notes that a client was given this many tokens of a step."""
        self._served[client_key] = self._served.get(client_key, 0) + num_tokens

    def forget_idle(self, active_clients: set[str]) -> None:
        """Drops the accounts of clients that neither wait nor run, so that keys do not pile up."""
        known = active_clients | self._waiting_clients()
        self._served = {key: served for key, served in self._served.items() if key in known}

    def candidates(self, limit: int) -> list[Sequence]:
        """Up to `limit` sequences of the highest priority, fairest first."""
        if not self._clients:
            return []
        clients = self._clients[max(self._clients)]
        fair_order = sorted(clients, key=lambda key: self._served.get(key, 0))
        return list(islice(_round_robin([clients[key] for key in fair_order]), limit))

    def _queue_of(self, sequence: Sequence) -> deque[Sequence]:
        clients = self._clients.setdefault(sequence.request.priority, {})
        return clients.setdefault(sequence.request.client_key, deque())

    def _waiting_clients(self) -> set[str]:
        return {key for clients in self._clients.values() for key in clients}

    def _level(self, client_key: str, active_clients: set[str]) -> None:
        present = active_clients | self._waiting_clients()
        if client_key in present:
            return
        floor = min((self._served.get(key, 0) for key in present), default=0)
        self._served[client_key] = max(self._served.get(client_key, 0), floor)


def _round_robin(queues: list[deque[Sequence]]) -> Iterator[Sequence]:
    depth = 0
    while any(depth < len(queue) for queue in queues):
        yield from (queue[depth] for queue in queues if depth < len(queue))
        depth += 1
