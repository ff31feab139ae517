"""The directory of running replicas of each engine deployment, in this process. Routers write it; fleets read it.

It has a module of its own because Ray pickles the router's class by value: all copies must use the same directory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping


class Directory:
    """The replicas and open connections that this process knows. Routers write to it; fleets and links use it."""

    def __init__(self) -> None:
        self._present: dict[str, frozenset[str]] = {}
        self._connected: dict[str, int] = {}
        """Number of open connections by replica."""
        self._on_release: dict[str, Callable[[], object]] = {}
        """Callback of each deployment, see `listen`."""

    def note(self, deployment: str, replica_ids: Collection[str]) -> None:
        """Notes which replicas of a deployment run now."""
        self._present[deployment] = frozenset(replica_ids)

    def present(self, deployment: str) -> frozenset[str]:
        """The replicas of a deployment that get new requests."""
        return self._present.get(deployment, frozenset())

    @property
    def counts(self) -> Mapping[str, int]:
        """Running replicas of each deployment."""
        return {deployment: len(ids) for deployment, ids in self._present.items()}

    def listen(self, deployment: str, on_release: Callable[[], object]) -> None:
        """Calls `on_release` whenever the last connection to some replica is closed.

        A deployment has one callback, that of its router: a later one replaces it.
        """
        self._on_release[deployment] = on_release

    def hold(self, replica_id: str) -> None:
        """Notes a connection to the replica, which keeps it reachable even if it gets no new requests."""
        self._connected[replica_id] = self._connected.get(replica_id, 0) + 1

    def release(self, replica_id: str) -> None:
        """Notes that a connection to the replica is closed."""
        self._connected[replica_id] -= 1
        if not self._connected[replica_id]:
            del self._connected[replica_id]
            for on_release in list(self._on_release.values()):
                on_release()

    def is_held(self, replica_id: str) -> bool:
        """Whether a connection to the replica is open."""
        return replica_id in self._connected


DIRECTORY = Directory()
