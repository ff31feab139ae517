"""Named sessions of clients: until a session expires, its KV in the pool is evicted only after all other KV."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from stoker.core.scheduler import Scheduler
from stoker.engine.question_messages import SessionState

MAX_SESSIONS = 1024
MAX_OF_OWNER = 64
"""Maximum number of sessions of one owner; beyond it, the least recently used ones end."""


@dataclass(slots=True)
class _Session:
    owner: str
    ttl_s: float
    began_at: float
    used_at: float
    num_requests: int = 0

    @property
    def expires_at(self) -> float:
        return self.used_at + self.ttl_s


class Sessions:
    """The sessions of one engine. Belongs to the engine's thread.

    Args:
        scheduler: its KV pool keeps the slots of sessions longer than others.
        clock: seconds; only differences count.
    """

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float]) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        """Sessions by name, the least recently used first."""
        self._next_end = inf

    def use(self, name: str, owner: str, ttl_s: float) -> None:
        """Notes a request of a session, which begins with the request if it does not exist yet.

        Args:
            name: name of the session, unique among all owners.
            owner: the owner of the session.
            ttl_s: seconds after its last request at which the session ends.
        """
        self.expire()
        now = self._clock()
        session = self._sessions.setdefault(name, _Session(owner, ttl_s, now, now))
        self._sessions.move_to_end(name)
        session.used_at, session.ttl_s = now, ttl_s
        session.num_requests += 1
        self._next_end = min(self._next_end, session.expires_at)
        self._bound(owner)

    def expire(self) -> None:
        """Ends the sessions whose time is over. Their KV is evicted in the usual order from then on."""
        now = self._clock()
        if now < self._next_end:
            return
        for name in [name for name, session in self._sessions.items() if session.expires_at <= now]:
            self._forget(name)
        self._next_end = min((session.expires_at for session in self._sessions.values()), default=inf)

    def states(self, owner: str) -> list[SessionState]:
        """The sessions of an owner, the least recently used first."""
        self.expire()
        now = self._clock()
        return [
            SessionState(
                name=name,
                age_s=now - session.began_at,
                expires_in_s=session.expires_at - now,
                num_requests=session.num_requests,
                num_tokens=self._scheduler.kv.session_length(name),
            )
            for name, session in self._sessions.items()
            if session.owner == owner
        ]

    def end(self, name: str) -> bool:
        """Ends a session and erases its KV in the pool. False = no session has this name."""
        self.expire()
        if name not in self._sessions:
            return False
        self._scheduler.kv.erase_session(name)
        self._forget(name)
        return True

    def _bound(self, owner: str) -> None:
        own = [name for name, session in self._sessions.items() if session.owner == owner]
        for name in own[: max(0, len(own) - MAX_OF_OWNER)]:
            self._forget(name)
        while len(self._sessions) > MAX_SESSIONS:
            counts = Counter(session.owner for session in self._sessions.values())
            ((largest, _),) = counts.most_common(1)
            self._forget(next(name for name, session in self._sessions.items() if session.owner == largest))

    def _forget(self, name: str) -> None:
        del self._sessions[name]
        self._scheduler.kv.release_session(name)
