"""The Ray Serve request router for calls to engine replicas. Each call names its replica; the router chooses none."""

from __future__ import annotations

import asyncio
from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from stoker.cluster import directory  # as a module: Serve pickles this class by value, with copies of its globals


class DirectedRouter(RequestRouter):
    """Routes each call by its keyword `to`, the id of a replica. If that replica is gone, the call fails at once.

    A draining replica is kept while a front is connected to it: requests that run there may still be aborted.
    """

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Called by Serve whenever a replica was added or removed."""
        present = {replica.replica_id for replica in replicas}
        kept = [
            replica
            for replica_id, replica in self.curr_replicas.items()
            if replica_id not in present and directory.DIRECTORY.is_held(replica_id.unique_id)
        ]
        super().update_replicas([*replicas, *kept])
        name, loop = self._deployment_id.name, asyncio.get_running_loop()
        directory.DIRECTORY.note(name, [replica_id.unique_id for replica_id in present])
        directory.DIRECTORY.listen(name, lambda: loop.call_soon_threadsafe(self._let_go))

    def _let_go(self) -> None:
        """Drops kept replicas whose connections are closed. With no replica left, calls wait and Serve starts one."""
        present = directory.DIRECTORY.present(self._deployment_id.name)
        left = [
            replica
            for replica_id, replica in self.curr_replicas.items()
            if replica_id.unique_id in present or directory.DIRECTORY.is_held(replica_id.unique_id)
        ]
        if len(left) < len(self.curr_replicas):
            super().update_replicas(left)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The replica that the call names in `to`; the call fails with a LookupError if there is none."""
        if pending_request is None:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True
        call: Any = pending_request
        wanted = call.kwargs.get("to")
        found = [replica for replica in candidate_replicas if replica.replica_id.unique_id == wanted]
        if not found and not call.future.done():
            call.future.set_exception(LookupError(f"there is no replica {wanted}"))
        return [found or candidate_replicas]
