"""The queue of waiting sequences: by priority, then fairly between client keys, then by arrival. It knows no slots."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import nsmallest
from itertools import islice

from stoker.core.sequence import Sequence

MAX_ACCOUNTS = 2048
"""Maximum number of clients whose tokens are counted, unless more are waiting or running."""


class WaitingQueue:
    """The waiting sequences of one scheduler or embedder.

    Fairness is by tokens: the client for which the fewest tokens were computed comes first. If a client comes back, its
    count is raised to the smallest of the waiting clients, so that it gains nothing by having been idle; a larger count
    is kept, so that it gains nothing by leaving for a moment. The idea is the virtual token counter (VTC) of
    "Fairness in Serving Large Language Models", arXiv:2401.00588.
    """

    def __init__(self) -> None:
        self._clients: dict[int, dict[str, deque[Sequence]]] = {}
        self._served: dict[str, int] = {}
        self._last_account = 0
        """Token count of the client whose turn was last, at that time."""
        self._len = 0

    def __len__(self) -> int:
        return self._len

    def __iter__(self) -> Iterator[Sequence]:
        for clients in self._clients.values():
            for queue in clients.values():
                yield from queue

    def push(self, sequence: Sequence) -> None:
        """Adds a new sequence at the end of its client's queue."""
        self._level(sequence.request.client_key, sequence.request.priority)
        self._queue_of(sequence).append(sequence)
        self._len += 1

    def push_front(self, sequence: Sequence) -> None:
        """Adds a preempted or resumed sequence before all others of its client."""
        self._queue_of(sequence).appendleft(sequence)
        self._len += 1

    def take(self, sequence: Sequence) -> None:
        """Removes a sequence because its turn has come."""
        self._last_account = self._served.get(sequence.request.client_key, 0)
        self.remove(sequence)

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
        """Adds tokens that a step computes for a client to its count."""
        self._served[client_key] = self._served.get(client_key, 0) + num_tokens

    def forget_idle(self, active_clients: set[str]) -> None:
        """Bounds the number of counts: drops those of clients that neither wait nor run, smallest counts first."""
        if not active_clients and not self._len:
            self._served.clear()
            self._last_account = 0
        elif len(self._served) > MAX_ACCOUNTS:
            idle = self._served.keys() - active_clients - self._waiting_clients()
            for key in nsmallest(len(self._served) - MAX_ACCOUNTS // 2, idle, key=self._served.__getitem__):
                del self._served[key]

    def candidates(self, limit: int) -> list[Sequence]:
        """Up to `limit` sequences of the highest priority, fairest first."""
        if not self._clients:
            return []
        clients = self._clients[max(self._clients)]
        fair_order = nsmallest(limit, clients, key=lambda key: self._served.get(key, 0))
        return list(islice(_round_robin([clients[key] for key in fair_order]), limit))

    def _queue_of(self, sequence: Sequence) -> deque[Sequence]:
        clients = self._clients.setdefault(sequence.request.priority, {})
        return clients.setdefault(sequence.request.client_key, deque())

    def _waiting_clients(self) -> set[str]:
        return {key for clients in self._clients.values() for key in clients}

    def _level(self, client_key: str, priority: int) -> None:
        waiting = self._clients.get(priority, {})
        if client_key in waiting:
            return
        floor = min((self._served.get(key, 0) for key in waiting), default=self._last_account)
        self._served[client_key] = max(self._served.get(client_key, 0), floor)


def _round_robin(queues: list[deque[Sequence]]) -> Iterator[Sequence]:
    depth = 0
    while any(depth < len(queue) for queue in queues):
        yield from (queue[depth] for queue in queues if depth < len(queue))
        depth += 1
