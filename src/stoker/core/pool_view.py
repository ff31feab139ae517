"""What a client that looks at an engine is told of its KV pool and its requests: data only, see `pool`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolNode:
    """Tokens that the same slots hold, computed once."""

    number: int
    """Of the node as long as it lives; 0 or negative: several small ones below node `-number`, 0 being the root."""
    parent: int
    """The number of the node above it; 0 = none."""
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
    """Of `held`, what only finished conversations hold."""
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
    """None = it has none now."""
    state: str
    """`queued`, `restoring` (from memory or disk), `prompt`, `decode`, or `paused` (its client reads too slowly)."""
    num_prompt: int
    num_computed: int
    """Of prompt and answer, what is in its slot."""
    cached: tuple[int, int, int]
    """Of the prompt, what was taken from the pool, from memory and from disk."""
    num_from_disk: int
    """Of the prompt, what was only on disk when the request arrived."""
    num_completion: int
    num_drafted: int
    num_accepted: int
    num_preempted: int
    num_adapters: int
    priority: int
