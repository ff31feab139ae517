"""Merges the heartbeats of several engines into one: gauges of present engines, and counters also of ended ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from functools import reduce
from itertools import zip_longest
from typing import Any, cast, get_type_hints

import msgspec

from stoker.cache.counters import TierCounters
from stoker.core.histogram import Distribution, Gauge
from stoker.engine.stats import AdapterLoad, EngineStats

_NOTHING = EngineStats(0, 0, 0, 0, 0, 0, 0.0)


def _gauges(kind: type) -> dict[str, Gauge]:
    hints = get_type_hints(kind, include_extras=True)
    marks = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    return {name: mark for name, found in marks.items() for mark in found if isinstance(mark, Gauge)}


_GAUGES, _TIER_GAUGES = _gauges(EngineStats), _gauges(TierCounters)
_SHARED = {name for name, mark in (_GAUGES | _TIER_GAUGES).items() if mark is Gauge.LARGEST}


class Totals:
    """The counters of engine processes that are gone, and the newest heartbeats of the others, of one model."""

    def __init__(self) -> None:
        self._past = _NOTHING
        self._newest: dict[int, tuple[int, EngineStats]] = {}
        """Newest heartbeat by replica, with the incarnation of the process that sent it."""

    def note(self, replica: int, incarnation: int, beat: EngineStats | None) -> None:
        """Notes a replica's newest heartbeat, if there is one.

        Args:
            replica: the replica's number.
            incarnation: changes when its process restarts and its counters begin at 0.
            beat: the heartbeat of the present process.
        """
        if replica in self._newest and self._newest[replica][0] != incarnation:
            self.leave(replica)
        if beat is not None:
            self._newest[replica] = incarnation, beat

    def leave(self, replica: int) -> None:
        """Notes that a replica is gone; its counters stay in the totals."""
        _, beat = self._newest.pop(replica, (0, _NOTHING))
        self._past = _add(self._past, _counted(beat))

    def merged(self, alive: Iterable[EngineStats]) -> EngineStats:
        """The heartbeat of the model as a whole.

        Args:
            alive: heartbeats of the replicas that can be asked now. Of all others only counters are added, no gauges.
        """
        counted = reduce(_add, [_counted(beat) for _, beat in self._newest.values()], self._past)
        present = reduce(_add, alive, _NOTHING)
        gauges = {name: getattr(present, name) for name in _GAUGES}
        tiers = dataclasses.replace(counted.tiers, **{name: getattr(present.tiers, name) for name in _TIER_GAUGES})
        return msgspec.structs.replace(
            counted, **gauges, tiers=tiers, adapters=_with_tokens(present.adapters, counted.adapters)
        )


def _counted(beat: EngineStats) -> EngineStats:
    tiers = dataclasses.replace(beat.tiers, **dict.fromkeys(_TIER_GAUGES, 0))
    adapters = [AdapterLoad(load.name, 0, 0, load.num_tokens) for load in beat.adapters]
    return msgspec.structs.replace(beat, **dict.fromkeys(_GAUGES, 0), tiers=tiers, adapters=adapters)


def _with_tokens(present: list[AdapterLoad], counted: list[AdapterLoad]) -> list[AdapterLoad]:
    """The loaded adapters, each with all tokens that were ever generated with it."""
    tokens = {load.name: load.num_tokens for load in counted}
    return [msgspec.structs.replace(load, num_tokens=tokens[load.name]) for load in present]


def _add_loads(left: list[AdapterLoad], right: list[AdapterLoad]) -> list[AdapterLoad]:
    sums: dict[str, AdapterLoad] = {}
    for load in (*left, *right):
        same = sums.get(load.name, AdapterLoad(load.name, 0, 0, 0))
        sums[load.name] = AdapterLoad(
            load.name,
            same.num_running + load.num_running,
            same.num_waiting + load.num_waiting,
            same.num_tokens + load.num_tokens,
        )
    return list(sums.values())


def _add(left: EngineStats, right: EngineStats) -> EngineStats:
    names = EngineStats.__struct_fields__
    return EngineStats(**{name: _sum(name, getattr(left, name), getattr(right, name)) for name in names})


def _sum(name: str, left: object, right: object) -> Any:
    match left, right:
        case Distribution(), Distribution():
            counts = tuple(a + b for a, b in zip_longest(left.counts, right.counts, fillvalue=0))
            return Distribution(counts, left.total + right.total)
        case TierCounters(), TierCounters():
            names = [field.name for field in dataclasses.fields(TierCounters)]
            return TierCounters(**{field: _sum(field, getattr(left, field), getattr(right, field)) for field in names})
        case list(), list():
            return _add_loads(cast("list[AdapterLoad]", left), cast("list[AdapterLoad]", right))
        case int() | float(), int() | float():
            return max(left, right) if name in _SHARED else left + right
        case _:
            raise AssertionError(f"{name} of an engine's numbers cannot be added up")
