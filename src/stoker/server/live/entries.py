"""Converts an engine's report to the state that a client may see, and computes the changes between two states."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from stoker.core.pool_view import PoolView, SequenceState
from stoker.engine.stats import EngineStats
from stoker.engine.view import EngineView
from stoker.server.live.types import (
    KV,
    Changes,
    EngineEntry,
    EngineTick,
    MomentEntry,
    SequenceEntry,
    Snapshot,
    Step,
    Tick,
    Tiers,
    Totals,
    TreeNode,
)

_SALT = secrets.token_bytes(16)


@dataclass(frozen=True, slots=True)
class Reader:
    """The rights of the client that observes an engine.

    Args:
        may_read: whether the client may see ids and owners of all requests.
        key_name: name of the client's API key; the client may always see its own requests.
    """

    may_read: bool
    key_name: str

    def knows(self, client_key: str) -> bool:
        """Whether the observer may see the ids of requests with this fairness key."""
        return self.may_read or (bool(self.key_name) and client_key == self.key_name)


def engine_entry(view: EngineView, reader: Reader, clock: Callable[[], float] = time.time) -> EngineEntry:
    """The JSON of one engine, without what this reader may not see."""
    offset = clock() - view.now_s
    known = {state.request_id for state in view.sequences if reader.knows(state.client_key)}
    return EngineEntry(
        replica=view.replica,
        recorder=view.recorder,
        kv=_kv(view.pool, view.stats),
        totals=_totals(view.stats),
        tiers=_tiers(view.stats),
        seq=[
            _sequence(state, view.arrivals.get(state.request_id, view.now_s) + offset, is_own=state.request_id in known)
            for state in view.sequences
        ],
        tree=[
            TreeNode(
                id=node.number,
                parent=node.parent,
                n=node.num_tokens,
                num_slots=node.num_slots,
                slots=list(node.slots),
                running=node.is_running,
            )
            for node in view.pool.nodes
        ],
        steps=[
            Step(serial, round(at_s + offset, 4), *same)
            for serial, at_s, *same in map(msgspec.structs.astuple, view.steps)
        ],
        moments=[
            MomentEntry(
                serial=moment.serial,
                t=round(moment.at_s + offset, 4),
                kind=moment.kind,
                id=_shown(moment.request_id, is_own=reader.may_read or moment.request_id in known),
                n=moment.count,
            )
            for moment in view.moments
        ],
    )


class Differences:
    """Computes the events for one follower: a snapshot first and after each restart of an engine, otherwise changes."""

    def __init__(self) -> None:
        self._before: dict[int, EngineEntry] = {}
        self._error: str | None = None

    def of(self, t: float, engines: Sequence[EngineEntry], error: str | None) -> Snapshot | Tick | None:
        """The event for the present state: a snapshot, or the changes since the last call; None = no change."""
        before, self._before = self._before, {entry.replica: entry for entry in engines}
        was, self._error = self._error, error
        recorders = {number: entry.recorder for number, entry in before.items()}
        if error is not None or recorders != {entry.replica: entry.recorder for entry in engines}:
            is_news = error is None or error != was
            return Snapshot(t=t, engines=list(engines), error=UNSET if error is None else error) if is_news else None
        ticks = [tick for entry in engines if (tick := _tick(before[entry.replica], entry)) is not None]
        return Tick(t=t, engines=ticks) if ticks else None


def _tick(before: EngineEntry, after: EngineEntry) -> EngineTick | None:
    tick = EngineTick(
        replica=after.replica,
        kv=_if_new(before.kv, after.kv),
        totals=_if_new(before.totals, after.totals),
        tiers=_if_new(before.tiers, after.tiers),
        seq=_changes(before.seq, after.seq),
        tree=_changes(before.tree, after.tree),
        steps=after.steps or UNSET,
        moments=after.moments or UNSET,
    )
    return None if tick == EngineTick(replica=after.replica) else tick


def _if_new(before: Any, after: Any) -> Any:
    return UNSET if before == after else after


def _changes(
    before: Sequence[SequenceEntry] | Sequence[TreeNode], after: Sequence[SequenceEntry] | Sequence[TreeNode]
) -> Changes | UnsetType:
    known = {item.id: item for item in before}
    changed = [item for item in after if known.get(item.id) != item]
    gone = known.keys() - {item.id for item in after}
    return Changes(set=changed, gone=list(gone)) if changed or gone else UNSET


def _sequence(state: SequenceState, since: float, *, is_own: bool) -> SequenceEntry:
    return SequenceEntry(
        id=_shown(state.request_id, is_own=is_own),
        own=is_own,
        key=state.client_key if is_own else "",
        slot=state.slot,
        state=state.state,
        prompt=state.num_prompt,
        computed=state.num_computed,
        cached=state.cached,
        from_disk=state.num_from_disk,
        since=round(since, 1),
        written=state.num_completion,
        drafted=state.num_drafted,
        kept=state.num_accepted,
        preempted=state.num_preempted,
        adapters=state.num_adapters,
        priority=state.priority,
    )


def _shown(request_id: str, *, is_own: bool) -> str:
    """The id of a request, or for clients without the right to read it a keyed digest, constant but meaningless."""
    if is_own or not request_id:
        return request_id
    return f"client-{blake2b(request_id.encode(), key=_SALT, digest_size=5).hexdigest()}"


def _kv(pool: PoolView, stats: EngineStats) -> KV:
    return KV(
        capacity=pool.capacity,
        token_bytes=stats.kv_capacity_bytes // pool.capacity if pool.capacity else 0,
        held=pool.held,
        retained=pool.retained,
        promised=pool.promised,
        leaving=pool.leaving,
    )


def _totals(stats: EngineStats) -> Totals:
    return Totals(
        running=stats.num_running,
        waiting=stats.num_waiting,
        paused=stats.num_paused,
        steps=stats.num_steps,
        prompt=stats.prompt_tokens,
        cached=stats.cached_tokens,
        pool_hits=stats.pool_hit_tokens,
        evicted=stats.pool_evicted_tokens,
        preempted=stats.num_preemptions,
        drafted=stats.drafted_tokens,
        kept=stats.accepted_tokens,
    )


def _tiers(stats: EngineStats) -> Tiers:
    tiers = stats.tiers
    return Tiers(
        ram_bytes=tiers.ram_bytes,
        ram_limit_bytes=tiers.ram_limit_bytes,
        ram_hits=tiers.ram_hit_tokens,
        disk_bytes=tiers.disk_bytes,
        disk_limit_bytes=tiers.disk_limit_bytes,
        disk_hits=tiers.disk_hit_tokens,
        exported=tiers.exported_tokens,
        restored=tiers.restored_tokens,
    )


def event(name: str, value: msgspec.Struct) -> bytes:
    """The bytes of one server-sent event."""
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(value) + b"\n\n"
