"""Makes snapshots of the KV pool for inspection: what it holds and which requests run in it. It changes nothing.

```
    root ── 7: 812 tokens, slots 0 3 5 ─┬─ 9: 204 tokens, slot 0        all widths together are the ledger's `held`
                                        └─ 12: 31 tokens, slots 3 5
```
"""

from __future__ import annotations

from collections.abc import Iterable

from stoker.core.batch import Entry
from stoker.core.kv_cache import KVCache
from stoker.core.pool_view import PoolNode, PoolView, SequenceState
from stoker.core.prefix_tree import Node
from stoker.core.sequence import Sequence

MAX_NODES = 256
"""Maximum number of nodes in a view; smaller nodes are summed up per parent node."""
_LEAST_SHARE = 0.002
"""Nodes whose subtree holds a smaller fraction of the held tokens than this are summed up per parent node."""


def pool_view(kv: KVCache) -> PoolView:
    """A snapshot of what the pool holds. The tokens of its nodes add up to `held`."""
    least = max(1, int(kv.ledger.held * _LEAST_SHARE))
    nodes = _shared(kv, least) if kv.ledger.shares_cells else _copied(kv)
    while kv.ledger.shares_cells and len(nodes) > MAX_NODES:
        least *= 2
        nodes = _shared(kv, least)
    return PoolView(
        capacity=kv.ledger.capacity,
        held=kv.ledger.held,
        retained=kv.held_by_retained,
        promised=kv.ledger.num_promised,
        nodes=nodes,
        leaving=list(kv.retained)[:MAX_NODES],
    )


def prefix_of(kv: KVCache, number: int) -> tuple[int, list[Entry]] | None:
    """The number of entries before the node with this number in a view, and the entries of the node; None = no sequence
    holds the node any more.
    """
    if not kv.ledger.shares_cells:
        slot = number - 1
        return (0, kv.tree.entries(slot)) if slot in kv.tree.slots else None
    node = next((node for node in kv.tree.nodes() if node.number == number), None)
    if node is None:
        return None
    return sum(len(above.entries) for above in node.path()) - len(node.entries), node.entries


def sequence_state(sequence: Sequence, *, is_paused: bool = False) -> SequenceState:
    """A snapshot of a live sequence."""
    drafter, request = sequence.drafter, sequence.request
    return SequenceState(
        request_id=request.request_id,
        client_key=request.client_key,
        slot=sequence.slot,
        state="paused" if is_paused else _state(sequence),
        num_prompt=sequence.num_prompt,
        num_computed=sequence.num_computed,
        cached=sequence.cached_from,
        num_from_disk=sequence.num_from_disk,
        num_completion=sequence.num_completion,
        num_drafted=0 if drafter is None else drafter.num_drafted,
        num_accepted=0 if drafter is None else drafter.num_accepted,
        num_preempted=sequence.num_preempted,
        num_adapters=len(request.adapters),
        priority=request.priority,
    )


def _state(sequence: Sequence) -> str:
    if sequence.slot is None:
        return "restoring" if sequence.fetched_keys else "queued"
    if sequence.is_restoring:
        return "restoring"
    return "prompt" if sequence.num_computed < sequence.num_prompt else "decode"


def _shared(kv: KVCache, least: int) -> list[PoolNode]:
    """Every node with at least `least` tokens in its subtree, and one sum per parent of the smaller nodes."""
    found = list(kv.tree.nodes())
    sizes: dict[int, int] = {}
    for node in reversed(found):
        sizes[node.number] = len(node.entries) + sum(sizes[child.number] for child in node.children)
    running = {node.number for slot in kv.running_slots for node in kv.tree.path(slot)}
    shown: list[PoolNode] = []
    small: dict[int, list[Node]] = {}
    numbers: set[int] = set()
    for node in found:
        parent = _parent_number(node)
        if parent and parent not in numbers:
            continue  # it is counted in the sum of an ancestor
        if sizes[node.number] < least:
            small.setdefault(parent, []).append(node)
            continue
        numbers.add(node.number)
        shown.append(_node(node, parent, is_running=node.number in running))
    return shown + [_sum(parent, nodes, sizes, running) for parent, nodes in small.items()]


def _node(node: Node, parent: int, *, is_running: bool) -> PoolNode:
    return PoolNode(
        number=node.number,
        parent=parent,
        num_tokens=len(node.entries),
        num_slots=node.num_slots,
        slots=tuple(sorted(node.tips)),
        is_running=is_running,
    )


def _sum(parent: int, nodes: list[Node], sizes: dict[int, int], running: set[int]) -> PoolNode:
    return PoolNode(
        number=-parent,
        parent=parent,
        num_tokens=sum(sizes[node.number] for node in nodes),
        num_slots=sum(node.num_slots for node in nodes),
        slots=tuple(sorted(slot for node in nodes for slot in node.tips))[:MAX_NODES],
        is_running=any(node.number in running for node in nodes),
    )


def _parent_number(node: Node) -> int:
    parent = node.parent
    return 0 if parent is None or parent.parent is None else parent.number


def _copied(kv: KVCache) -> list[PoolNode]:
    """One node per slot, for a backend that copies cells: a prefix that two slots share occupies cells twice."""
    lengths = {slot: kv.tree.length(slot) for slot in sorted(kv.tree.slots)}
    return [_copy(slot, length, kv.running_slots) for slot, length in lengths.items() if length]


def _copy(slot: int, length: int, running: Iterable[int]) -> PoolNode:
    return PoolNode(
        number=slot + 1, parent=0, num_tokens=length, num_slots=1, slots=(slot,), is_running=slot in running
    )
