"""The JSON of `/engine/state` and `/engine/events`. Times are Unix time in seconds; counts are in tokens.

`v` grows when a field changes its meaning. The interface is not stable before version 1.0 of Stoker.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

VERSION = 1


class KV(msgspec.Struct, frozen=True, kw_only=True):
    """The KV pool, in tokens."""

    capacity: int
    token_bytes: int
    """0 = the backend does not say."""
    held: int
    """The sum of all `n` of the tree."""
    retained: int
    """The part of `held` that only finished conversations hold."""
    promised: int
    leaving: list[int]
    """Slots of finished conversations, in the order in which they are evicted."""


class TreeNode(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens that the same sequences hold."""

    id: int
    """0 or negative: small nodes added up, below node `-id`."""
    parent: int
    """0 = none."""
    n: int
    num_slots: int
    slots: list[int]
    """Slots whose sequences end at this node."""
    running: bool


class SequenceEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A request that is alive."""

    id: str
    """Id of the reply, with the number of the choice; without the right to read it, a meaningless name."""
    own: bool
    """The client may know whose it is."""
    key: str
    slot: int | None
    state: str
    """`queued`, `restoring`, `prompt`, `decode` or `paused`."""
    prompt: int
    computed: int
    cached: tuple[int, int, int]
    """Cached prompt tokens: found in the pool, restored from memory, and restored from disk."""
    from_disk: int
    """Prompt tokens that were only on disk when the request arrived."""
    since: float
    """When it arrived, to a tenth of a second."""
    written: int
    drafted: int
    kept: int
    preempted: int
    adapters: int
    priority: int


class Step(msgspec.Struct, frozen=True, array_like=True):
    """One step of the loop, as an array."""

    serial: int
    t: float
    ms: float
    forward_ms: float
    sample_ms: float
    decodes: int
    prompt: int
    drafted: int
    kept: int
    restored: int
    members: list[tuple[int, int]]
    """Slots, and the tokens computed in each."""
    plan_ms: float
    """Time of the scheduler before it."""
    id: int
    """The number by which `stoker.steps` of a traced answer names it."""


class MomentEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened."""

    serial: int
    t: float
    kind: str
    """`arrived`, `begun`, `first`, `finished`, `ended`, `evicted`, `preempted`, `paused` or `resumed`."""
    id: str
    n: int


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Counted since the engine's start, except for the first three."""

    running: int
    waiting: int
    paused: int
    steps: int
    prompt: int
    cached: int
    pool_hits: int
    evicted: int
    preempted: int
    drafted: int
    kept: int


class Tiers(msgspec.Struct, frozen=True, kw_only=True):
    """KV in the tiers in memory and on disk, in bytes and tokens."""

    ram_bytes: int
    ram_limit_bytes: int
    ram_hits: int
    disk_bytes: int
    disk_limit_bytes: int
    disk_hits: int
    exported: int
    restored: int


class EngineEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One engine of a model."""

    replica: int
    recorder: str
    """Another one: serials begin anew, and so does the tree."""
    kv: KV
    totals: Totals
    tiers: Tiers
    seq: list[SequenceEntry]
    tree: list[TreeNode]
    steps: list[Step]
    moments: list[MomentEntry]


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """The first event."""

    v: int
    model: str
    backend: str
    context: int
    parallel: int
    max_queue: int
    may_read: bool
    """Ids and names of other clients' requests are told."""
    hz: float


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything. Of a state without engines, `error` says why."""

    t: float
    engines: list[EngineEntry]
    error: str | UnsetType = UNSET


class EngineState(Hello, frozen=True, kw_only=True):
    """The reply of `/engine/state`."""

    t: float
    engines: list[EngineEntry]


class PrefixReply(msgspec.Struct, frozen=True, kw_only=True):
    """The reply of `/engine/prefix/{node}`."""

    id: int
    begin: int
    """Tokens of the prefix above the node."""
    n: int
    """Tokens of the node."""
    n_read: int
    """Tokens of the node that `text` has, from the first on."""
    text: str
    """With special tokens written out; U+FFFC stands for what is no token, such as a part of an image."""


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of a list whose items have ids."""

    set: list[Any]
    """New and changed items, whole."""
    gone: list[int | str]


class EngineTick(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of one engine. Missing fields have not changed."""

    replica: int
    kv: KV | UnsetType = UNSET
    totals: Totals | UnsetType = UNSET
    tiers: Tiers | UnsetType = UNSET
    seq: Changes | UnsetType = UNSET
    tree: Changes | UnsetType = UNSET
    steps: list[Step] | UnsetType = UNSET
    moments: list[MomentEntry] | UnsetType = UNSET


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    t: float
    engines: list[EngineTick]


class News(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model was loaded or unloaded, or its engine died or came back. News of all models are told."""

    t: float
    kind: str
    """`loading`, `loaded`, `unloaded`, `removed`, `crashed` or `restarted`."""
    id: str
    """The model."""
    part: float | None = None
    """Of `loading`: how far the weights are, from 0 to 1."""
    why: str = ""


EVENTS = (Hello, Snapshot, Tick, News)
