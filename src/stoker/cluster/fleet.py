"""The replicas of a model that the cluster says there are: each is connected to, drained when it leaves, and let go.

```
   is there           connected              is there no more        last request ended
  ──────────► loading ──────────► serving ─────────────────► draining ────────────────► closed
                 │ refused            │ lost                                                ▲
                 └────────────────────┴─────────────────────────────────────────────────────┘
```

A lost replica that is still present is connected again. The number of replicas and their nodes are decided elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from stoker.cluster.messages import Heard
from stoker.cluster.remote import RemoteEngine
from stoker.engine.cards import is_same_model
from stoker.engine.question_messages import BlocksHeld
from stoker.errors import ModelNotLoaded, StokerError
from stoker.runtime.cached_prefixes import CachedPrefixes
from stoker.runtime.replica import Phase, Replica
from stoker.runtime.replica_set import ReplicaSet
from stoker.runtime.routing import Beginning

logger = logging.getLogger(__name__)

CHECK_S = 0.5


class ClusterFleet:
    """The `Fleet` of a cluster. Belongs to one event loop.

    Args:
        present: the ids of the replicas that are there now.
        connect: makes the runtime of one, not started.
        start_s: how long `start` waits for the first one.
    """

    def __init__(
        self,
        present: Callable[[], Collection[str]],
        connect: Callable[[str], RemoteEngine],
        start_s: float = 900.0,
    ) -> None:
        self.members = ReplicaSet(may_refill=True)
        self.prefixes = CachedPrefixes()
        self._present = present
        self._connect = connect
        self._start_s = start_s
        self._ids: dict[Replica, str] = {}
        self._connecting: set[asyncio.Task[None]] = set()
        self._others: set[str] = set()
        """Replicas that serve another model."""
        self._on_checked: Callable[[], None] = lambda: None
        self._is_serving = asyncio.Event()
        self._checking: asyncio.Task[None] | None = None

    def listen(self, on_checked: Callable[[], None]) -> None:
        """See `Fleet`."""
        self._on_checked = on_checked

    async def start(self) -> None:
        """Returns when one replica can be asked.

        Raises:
            ModelNotLoaded: none came in time.
        """
        self._checking = asyncio.create_task(self._keep_checking(), name="stoker-cluster-fleet")
        try:
            async with asyncio.timeout(self._start_s):
                await self._is_serving.wait()
        except TimeoutError:
            await self.close()
            raise ModelNotLoaded(f"no replica of the model answered within {self._start_s:g} s") from None

    def check(self) -> None:
        """Connects to new replicas, and drops those that have left."""
        self.members.health()  # what was counted so far is noted before it may go
        present = set(self._present())
        for replica in list(self._ids):
            self._look_at(replica, present)
        for replica_id in sorted(self._unconnected(present)):
            self._add(replica_id)
        self._on_checked()

    async def close(self) -> None:
        """Disconnects from all. Calling it twice is allowed."""
        self.members.mark_closed()
        tasks = [task for task in (self._checking, *self._connecting) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._ids.clear()
        await self.members.close()

    def _unconnected(self, present: set[str]) -> set[str]:
        return present - set(self._ids.values()) - self._others

    def _look_at(self, replica: Replica, present: set[str]) -> None:
        is_there = self._ids[replica] in present
        is_lost = replica.runtime.health().state == "failed"
        may_leave = replica.phase is Phase.SERVING and not is_lost and not self._is_last(replica, present)
        if not is_there and may_leave:
            logger.info("replica %d leaves when its %d requests have ended", replica.number, replica.num_open)
            replica.phase = Phase.DRAINING
        elif is_there and replica.phase is Phase.DRAINING:
            replica.phase = Phase.SERVING
        is_idle = replica.phase is Phase.DRAINING and replica.num_open == 0
        if is_idle or (is_lost and replica.num_open == 0):
            self._let_go(replica)

    def _is_last(self, replica: Replica, present: set[str]) -> bool:
        """Its successors are there and not connected yet. The replica answers until then: it has time to end."""
        others = [other for other in self.members.replicas if other is not replica]
        is_succeeded = bool(self._unconnected(present)) or any(other.phase is Phase.LOADING for other in others)
        return is_succeeded and not any(other.can_answer for other in others)

    def _add(self, replica_id: str) -> None:
        runtime = self._connect(replica_id)
        replica = Replica(self.members.free_number, runtime)
        runtime.listen(_Prefixes(self.prefixes, replica.number))
        self.members.add(replica)
        self._ids[replica] = replica_id
        task = asyncio.create_task(self._start(replica, replica_id), name=f"stoker-connect-{replica_id}")
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _start(self, replica: Replica, replica_id: str) -> None:
        try:
            card, first = await replica.runtime.start(), self.members.first_card
        except StokerError as error:
            logger.info("replica %s cannot be connected to yet: %s", replica_id, error.message)
            self._let_go(replica)
            return
        if first is not None and not is_same_model(card, first):
            logger.error("replica %s has another model (%s), and gets no requests", replica_id, card.path)
            self._others.add(replica_id)
            self._let_go(replica)
            return
        self.members.serve(replica)
        self._is_serving.set()
        self._on_checked()

    def _let_go(self, replica: Replica) -> None:
        if self._ids.pop(replica, None) is not None and replica in self.members:
            self.prefixes.drop(replica.number)
            self.members.remove(replica)

    async def _keep_checking(self) -> None:
        while True:
            self.check()
            await asyncio.sleep(CHECK_S)


class _Prefixes:
    """What one replica says about its cache, and about other fronts. See `CacheListener`."""

    def __init__(self, prefixes: CachedPrefixes, number: int) -> None:
        self._prefixes = prefixes
        self._number = number

    def on_heard(self, heard: Heard) -> None:
        beginning = Beginning(heard.keys, heard.num_tokens)
        self._prefixes.note_heard(self._number, beginning)
        self._prefixes.note_accepted(beginning, heard.accepted)

    def on_blocks(self, answer: BlocksHeld) -> bool:
        return self._prefixes.note_held(self._number, answer)
