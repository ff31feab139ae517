"""The JSON types of `/engine/state` and `/engine/events`. Times are Unix time in seconds; counts are in tokens.

`v` increases when a field changes its meaning. The interface is not stable before version 1.0 of Stoker.
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
    """Size of one token's KV in bytes; 0 = the backend does not report it."""
    held: int
    """Number of tokens in the pool, which is the sum of all `n` of the tree."""
    retained: int
    """The part of `held` that only finished conversations hold."""
    promised: int
    leaving: list[int]
    """Slots of finished conversations, in the order in which they are evicted."""


class TreeNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the prefix tree: consecutive tokens that the same sequences hold."""

    id: int
    """Number of the node; 0 or negative = the sum of small nodes below node `-id`."""
    parent: int
    """Number of the parent node; 0 = none."""
    n: int
    num_slots: int
    slots: list[int]
    """Slots whose sequences end at this node."""
    running: bool


class SequenceEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A request that waits or runs."""

    id: str
    """Id of the reply, with the number of the choice; a meaningless name if the client may not read the id."""
    own: bool
    """Whether the client may see the id and the owner of the request."""
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
    """Time at which the request arrived, to a tenth of a second."""
    written: int
    drafted: int
    kept: int
    preempted: int
    adapters: int
    priority: int


class Step(msgspec.Struct, frozen=True, array_like=True):
    """One step of the engine's loop, as an array."""

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
    """Pairs of a slot and the number of tokens computed in it."""
    plan_ms: float
    """Time of the scheduler before the step, in milliseconds."""
    id: int
    """Number of the step, to which `stoker.steps` of a traced answer refers."""


class MomentEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An event in the life of a request, or an eviction."""

    serial: int
    t: float
    kind: str
    """`arrived`, `begun`, `first`, `finished`, `ended`, `evicted`, `preempted`, `paused` or `resumed`."""
    id: str
    n: int


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Totals since the engine's start, except for the first three fields, which are current numbers."""

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
    """KV in the cache tiers in memory and on disk, in bytes and tokens."""

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
    """Id of the engine's recorder. If it changes, serial numbers and the tree begin anew."""
    kv: KV
    totals: Totals
    tiers: Tiers
    seq: list[SequenceEntry]
    tree: list[TreeNode]
    steps: list[Step]
    moments: list[MomentEntry]


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """The first event of a stream, with the constant facts."""

    v: int
    model: str
    backend: str
    context: int
    parallel: int
    max_queue: int
    may_read: bool
    """Whether the client sees ids and names of other clients' requests."""
    hz: float


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The whole state. `error` is the reason if there are no engines."""

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
    """Number of tokens of the prefix above the node."""
    n: int
    """Number of tokens of the node."""
    n_read: int
    """Number of tokens of the node, from the first on, that `text` contains."""
    text: str
    """Text of the tokens, including special tokens; U+FFFC stands for entries without a token, such as parts of an
    image."""


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of a list whose items have ids."""

    set: list[Any]
    """New and changed items, with all of their fields."""
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
    """News of any model: it was loaded or unloaded, or its engine crashed or restarted."""

    t: float
    kind: str
    """`loading`, `loaded`, `unloaded`, `removed`, `crashed` or `restarted`."""
    id: str
    """Id of the model."""
    part: float | None = None
    """Loaded part of the weights, from 0 to 1, for the kind `loading`."""
    why: str = ""


EVENTS = (Hello, Snapshot, Tick, News)
