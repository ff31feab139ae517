"""The Ray Serve deployment of engines: each replica owns the runtime of one model, to which fronts connect."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any

from stoker.cluster.actor_log import log_to_stderr
from stoker.cluster.config import EngineSpec
from stoker.cluster.direct import Entrance
from stoker.cluster.handover import frames_through_ray
from stoker.cluster.kv_events import KVEventPublisher
from stoker.cluster.messages import encode
from stoker.cluster.session import Session
from stoker.cluster.untyped import ray
from stoker.engine.health import Health
from stoker.runtime.block_follower import BlockFollower

logger = logging.getLogger(__name__)

_UNKNOWN_S = 5.0
"""Seconds by which the first orders of a front may precede its connection."""


class Engine:
    """One replica. It supervises its engine process; Ray Serve replaces the replica only if that fails for good."""

    async def __init__(self, spec: EngineSpec) -> None:
        from stoker.runtime.starting import started

        log_to_stderr()
        self._sessions: dict[str, Session] = {}
        self._has_sessions = asyncio.Condition()
        self._node = str(ray.util.get_node_ip_address())
        self._entrance = Entrance(self._node, spec.cluster.ports_on(os.environ))
        await self._entrance.open()
        self._runtime = await started(spec.model_spec(), None)
        self._blocks = BlockFollower(self._runtime, wants_tokens=spec.cluster.kv_events)
        self._events: KVEventPublisher | None = None
        if spec.cluster.kv_events:
            self._events = KVEventPublisher(self._node)
            self._blocks.listen(self._events.publish)

    async def connect(self, session_id: str, to: str) -> AsyncGenerator[bytes, None]:
        """Encoded lists of reports to a front, until the front leaves.

        Args:
            session_id: id of the session, chosen by the front.
            to: id of this replica, which the router reads.
        """
        endpoint = "" if self._events is None else self._events.endpoint
        ticket = self._entrance.ticket()
        try:
            others = partial(self._others, session_id)
            session = Session(self._runtime, self._node, others, self._blocks, endpoint, ticket)
            async with self._has_sessions:
                self._sessions[session_id] = session
                self._has_sessions.notify_all()
            async with aclosing(frames_through_ray(session, self._entrance, ticket)) as frames:
                async for frame in frames:
                    yield encode(frame)
        finally:
            self._entrance.forget(ticket)
            self._sessions.pop(session_id, None)

    async def tell(self, session_id: str, part: bytes, to: str, *, has_more: bool) -> bool:
        """Takes a part of the encoded orders of a front. False = the front is not connected (any more)."""
        if session_id not in self._sessions and not await self._connects(session_id):
            return False
        self._sessions[session_id].take(part, has_more=has_more)
        return True

    async def _connects(self, session_id: str) -> bool:
        """Waits for a session whose connection is still on its way."""
        try:
            async with asyncio.timeout(_UNKNOWN_S), self._has_sessions:
                return await self._has_sessions.wait_for(lambda: session_id in self._sessions)
        except TimeoutError:
            return False

    def _others(self, session_id: str) -> list[Session]:
        return [session for name, session in self._sessions.items() if name != session_id]

    async def check_health(self) -> None:
        """Called by Ray Serve. An engine that is restarting counts as healthy: its supervisor is faster than Serve."""
        health: Health = self._runtime.health()
        if health.state in ("failed", "closed"):
            raise RuntimeError(f"the engine is {health.state}: {health.last_error}")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Called by Ray Serve: the statistics that decide the number of replicas, see `scaling`."""
        beat, card = self._runtime.health().heartbeat, self._runtime.card
        num_open = 0 if beat is None else beat.num_running + beat.num_waiting
        return {"open_requests": num_open, "places": card.parallel}

    async def __del__(self) -> None:
        runtime: Any = getattr(self, "_runtime", None)
        if runtime is not None:
            await asyncio.gather(*(session.close() for session in self._sessions.values()))
            await self._blocks.close()
            if self._events is not None:
                await self._events.close()
            await self._entrance.close()
            await runtime.close()
