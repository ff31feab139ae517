"""The replicas of each engine deployment that this process knows. Written by the router, read by fleets.

It lies in a module of its own because Ray sends the class of a router by value: each copy finds this one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping


class Directory:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._present: dict[str, frozenset[str]] = {}
        self._connected: dict[str, int] = {}
        """Number of open connections by replica."""
        self._on_release: dict[str, Callable[[], object]] = {}
        """By deployment."""

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
        """Calls `on_release` when the last connection to any replica is closed. Only the newest of a deployment counts.

        A router says so: there is one for each deployment.
        """
        self._on_release[deployment] = on_release

    def hold(self, replica_id: str) -> None:
        """Whether there is a connection to the replica: it can then get messages even if it gets no new requests."""
        self._connected[replica_id] = self._connected.get(replica_id, 0) + 1

    def release(self, replica_id: str) -> None:
        """The connection is closed."""
        self._connected[replica_id] -= 1
        if not self._connected[replica_id]:
            del self._connected[replica_id]
            for on_release in list(self._on_release.values()):
                on_release()

    def is_held(self, replica_id: str) -> bool:
        """A connection to it is open."""
        return replica_id in self._connected


DIRECTORY = Directory()
