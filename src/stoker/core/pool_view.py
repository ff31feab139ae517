"""Snapshots of an engine's KV pool and its requests, as clients see them: data only, made by `pool`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolNode:
    """A run of tokens that the same slots hold, computed once."""

    number: int
    """Number of the node, constant while it exists; ≤ 0: the sum of small nodes below node `-number` (0 = root)."""
    parent: int
    """Number of the parent node; 0 = none."""
    num_tokens: int
    num_slots: int
    """Sequences that share the node, running or finished."""
    slots: tuple[int, ...]
    """Slots of the sequences that end at this node."""
    is_running: bool
    """A running request holds the node, so that it cannot be evicted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """Counts are in tokens, which are cells."""

    capacity: int
    held: int
    retained: int
    """The part of `held` that only finished conversations hold."""
    promised: int
    nodes: list[PoolNode]
    leaving: list[int]
    """The slots of finished conversations, in the order in which they are evicted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceState:
    """A request that is alive. Counts are in tokens."""

    request_id: str
    client_key: str
    slot: int | None
    """The slot in which the request runs; None = it does not run."""
    state: str
    """`queued`, `restoring` (from memory or disk), `prompt`, `decode`, or `paused` (its client reads too slowly)."""
    num_prompt: int
    num_computed: int
    """Number of tokens of prompt and answer whose KV is in the slot."""
    cached: tuple[int, int, int]
    """Numbers of prompt tokens whose KV came from the pool, from RAM and from disk."""
    num_from_disk: int
    """Number of prompt tokens whose KV was only on disk when the request arrived."""
    num_completion: int
    num_drafted: int
    num_accepted: int
    num_preempted: int
    num_adapters: int
    priority: int
