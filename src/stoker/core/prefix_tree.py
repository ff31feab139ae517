"""Which entries are resident in which slots, and who shares them; it neither evicts nor decides.

A radix tree over entries. A slot is a path from the root to its *tip*, always the end of a node. Two slots share a
node only if one was copied from the other: equal entries that were computed twice are two nodes, because they
occupy cells twice. Each cache key has a root of its own: nothing is ever matched across keys.

```
    root ── [system prompt] ─┬─ [question A, answer A]   tip of slot 0
                             ├─ [question B]             tip of slot 3
                             └─ [question A]             tip of slot 5 (computed on its own)
```

Radix trees for KV reuse: RadixAttention, arXiv:2312.07104.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from stoker.core.batch import Entry

_numbers = count(1)


class Node:
    """A run of entries that the same slots hold. `num_slots` counts the slots whose path goes through it."""

    __slots__ = ("children", "entries", "num_slots", "number", "parent", "tips")

    def __init__(self, parent: Node | None, entries: list[Entry]) -> None:
        self.number = next(_numbers)
        self.parent = parent
        self.entries = entries
        self.children: list[Node] = []
        self.tips: set[int] = set()
        self.num_slots = 0

    def path(self) -> Iterator[Node]:
        """This node and its ancestors, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


@dataclass(frozen=True, slots=True)
class Match:
    """The longest resident prefix of some entries: `length` of them, ending `depth` entries into `node`."""

    node: Node
    depth: int
    length: int


class PrefixTree:
    """Paths of entries, one per slot. All counts are in entries, which are cells."""

    def __init__(self) -> None:
        self._roots: dict[Hashable, Node] = {}
        self._tips: dict[int, Node] = {}
        self._lengths: dict[int, int] = {}
        self.num_distinct = 0
        """Entries in the tree, each node counted once: cells if a backend shares them."""
        self.num_total = 0
        """Entries over all slots, shared ones counted again: cells if a backend copies them."""
        self._cuts: dict[int, int] = {}

    @property
    def slots(self) -> Iterable[int]:
        return self._tips.keys()

    def length(self, slot: int) -> int:
        return self._lengths[slot]

    def nodes(self) -> Iterator[Node]:
        """All nodes but the roots, each before those below it."""
        return _walk(self._roots.values())

    def path(self, slot: int) -> Iterator[Node]:
        """The nodes that a slot holds, the last one first."""
        return self._tips[slot].path()

    def tips_beside(self, slot: int) -> set[int]:
        """The slots that end where a slot does, itself included."""
        return self._tips[slot].tips

    def entries(self, slot: int) -> list[Entry]:
        """All entries of a slot, in order."""
        runs = [node.entries for node in self._tips[slot].path()]
        return [entry for run in reversed(runs) for entry in run]

    def insert(self, slot: int, key: Hashable = None) -> None:
        """Adds an empty slot whose entries can be matched under `key` only."""
        assert slot not in self._tips
        root = self._roots.setdefault(key, Node(None, []))
        self._tips[slot] = root
        root.tips.add(slot)
        self._lengths[slot] = 0

    def extend(self, slot: int, entries: Sequence[Entry]) -> None:
        """Appends entries that only this slot holds."""
        if not entries:
            return
        tip = self._tips[slot]
        self.num_distinct += len(entries)
        self.num_total += len(entries)
        self._lengths[slot] += len(entries)
        if tip.parent is not None and tip.num_slots == 1:
            tip.entries.extend(entries)
            return
        node = Node(tip, list(entries))
        tip.children.append(node)
        self._move_tip(slot, node)
        node.num_slots = 1

    def extend_each(self, added: Mapping[int, Sequence[Entry]]) -> None:
        """`extend` for many slots: in nearly every step, and nearly always in place."""
        num_added = 0
        for slot, entries in added.items():
            tip = self._tips[slot]
            if tip.num_slots == 1 and tip.parent is not None:
                tip.entries.extend(entries)
                self._lengths[slot] += len(entries)
                num_added += len(entries)
            else:
                self.extend(slot, entries)
        self.num_distinct += num_added
        self.num_total += num_added

    def copy(self, source: int, target: int, length: int) -> None:
        """Gives the empty slot `target` the first `length` entries of `source`, shared."""
        assert self._lengths[target] == 0
        node = self._node_ending_at(source, length)
        self._move_tip(target, node)
        self._lengths[target] = length
        self.num_total += length
        for shared in node.path():
            shared.num_slots += 1

    def truncate(self, slot: int, length: int) -> None:
        """Keeps the first `length` entries of a slot."""
        assert length <= self._lengths[slot]
        old_tip, new_tip = self._tips[slot], self._node_ending_at(slot, length)
        self._cuts[slot] = min(length, self._cuts.get(slot, length))
        self._move_tip(slot, new_tip)
        self.num_total -= self._lengths[slot] - length
        self._lengths[slot] = length
        for node in _between(old_tip, new_tip):
            node.num_slots -= 1
            if node.num_slots == 0:
                self.num_distinct -= len(node.entries)
                assert node.parent is not None
                node.parent.children.remove(node)
        survivor = next((node for node in _between(old_tip, new_tip) if node.num_slots > 0), None)
        if survivor is not None:
            _join(survivor)

    def remove(self, slot: int) -> None:
        """Drops a slot and every entry that only it held."""
        self.truncate(slot, 0)
        root = self._tips.pop(slot)
        root.tips.discard(slot)
        del self._lengths[slot]
        if not root.tips and not root.children:
            self._roots = {key: node for key, node in self._roots.items() if node is not root}

    def take_cuts(self) -> dict[int, int]:
        """How many entries have stayed in each slot that was cut since the last call. Other slots have only grown."""
        cuts, self._cuts = self._cuts, {}
        return cuts

    def match(self, entries: list[Entry], key: Hashable = None) -> Match:
        """The longest prefix of `entries` that some slot holds under `key`."""
        return max(self._matches(entries, key), key=lambda match: match.length)

    def match_end(self, entries: list[Entry], key: Hashable = None) -> Match:
        """The longest prefix of `entries` that is all that some slot holds under `key`."""
        found = self._matches(entries, key)
        ends = (match for match in found if match.depth == len(match.node.entries) and match.node.tips)
        return max(ends, key=lambda match: match.length, default=Match(Node(None, []), 0, 0))

    def _matches(self, entries: list[Entry], key: Hashable) -> Iterator[Match]:
        """How `entries` run through the tree, in each of its branches: of nothing at first, then of node after node."""
        ends = [Match(self._roots.get(key) or Node(None, []), 0, 0)]
        while ends:
            end = ends.pop()
            yield end
            if end.depth == len(end.node.entries):
                ends += _matches_below(end, entries)

    def overlap(self, slot: int, entries: list[Entry]) -> int:
        """How many of `entries` a slot begins with."""
        length = 0
        for node in reversed(list(self._tips[slot].path())):
            depth = common_prefix(node.entries, entries, length)
            length += depth
            if depth < len(node.entries):
                break
        return length

    def slots_through(self, match: Match) -> set[int]:
        """Some slots that hold all of `match`: those whose tip comes first below it. Empty for an empty match."""
        node = match.node
        if node.parent is None:
            return set()
        while not node.tips:
            node = node.children[0]
        return node.tips

    def num_private(self, slot: int) -> int:
        """Entries at the end of a slot that no other slot holds."""
        total = 0
        for node in self._tips[slot].path():
            if node.num_slots > 1:
                break
            total += len(node.entries)
        return total

    def num_within(self, reach: int) -> int:
        """Distinct entries that are at most `reach` entries before the end of a slot that holds them.

        ```
        reach 4:   a b c[d e f g]─┬─[h i]  tip        of a node they are its last ones, as many as the nearest tip below
                         tip ─────┘                   it leaves: nodes end only at tips and where paths part
        ```
        """
        nearest: dict[int, int] = {}
        num_found = 0
        for node in reversed(list(self.nodes())):
            below = (nearest[child.number] + len(child.entries) for child in node.children)
            nearest[node.number] = distance = 0 if node.tips else min(below)
            num_found += max(0, min(len(node.entries), reach - distance))
        return num_found

    def num_held_by(self, slots: Iterable[int], match: Match | None = None) -> int:
        """Distinct entries that these slots, and the path of `match`, hold together."""
        seen: dict[int, int] = {}
        for slot in slots:
            for node in self._tips[slot].path():
                seen[id(node)] = len(node.entries)
        if match is not None and match.node.parent is not None:
            seen[id(match.node)] = max(match.depth, seen.get(id(match.node), 0))
            for node in match.node.parent.path():
                seen[id(node)] = len(node.entries)
        return sum(seen.values())

    def check_integrity(self) -> None:
        """Asserts that every count equals what a walk over the tree finds."""
        passing: dict[int, int] = {}
        assert self.num_total == sum(self._lengths.values())
        for slot, tip in self._tips.items():
            assert slot in tip.tips
            assert self._lengths[slot] == sum(len(node.entries) for node in tip.path())
            for node in tip.path():
                passing[id(node)] = passing.get(id(node), 0) + 1
        distinct = 0
        for node in _walk(self._roots.values()):
            assert node.entries, "an empty node"
            assert node.num_slots == passing.get(id(node), 0) > 0
            assert node.tips or len(node.children) > 1, "a node that should be one with its child"
            distinct += len(node.entries)
        assert distinct == self.num_distinct

    def _node_ending_at(self, slot: int, length: int) -> Node:
        """The node of a slot's path that ends after `length` entries, split off where needed."""
        node, end = self._tips[slot], self._lengths[slot]
        while node.parent is not None and end - len(node.entries) >= length:
            end -= len(node.entries)
            node = node.parent
        return node if end == length else self._split(node, length - (end - len(node.entries)))

    def _split(self, node: Node, depth: int) -> Node:
        """Puts a new node with the first `depth` entries above `node` and returns it."""
        assert node.parent is not None
        upper = Node(node.parent, node.entries[:depth])
        upper.num_slots, upper.children = node.num_slots, [node]
        siblings = node.parent.children
        siblings[siblings.index(node)] = upper
        node.parent, node.entries = upper, node.entries[depth:]
        return upper

    def _move_tip(self, slot: int, node: Node) -> None:
        self._tips[slot].tips.discard(slot)
        node.tips.add(slot)
        self._tips[slot] = node


def common_prefix(run: list[Entry], entries: list[Entry], start: int = 0) -> int:
    """How many entries of `run` equal those of `entries` from `start` on."""
    limit = min(len(run), len(entries) - start)
    # Compare in slices: the interpreter does that at memory speed, and prompts are thousands of entries long.
    step, length = 64, 0
    while length < limit:
        end = min(length + step, limit)
        if run[length:end] != entries[start + length : start + end]:
            break
        length, step = end, step * 2
    end = min(length + step, limit)
    while length < end and run[length] == entries[start + length]:
        length += 1
    return length


def _matches_below(end: Match, entries: list[Entry]) -> Iterator[Match]:
    """How `entries` go on in each child of a node that matches whole."""
    start = end.length
    for child in end.node.children if start < len(entries) else ():
        if child.entries[0] == entries[start]:
            depth = common_prefix(child.entries, entries, start)
            yield Match(child, depth, start + depth)


def _join(node: Node) -> None:
    """Joins a node with its only child when no slot ends between them: the tree stays as small as the slots."""
    if node.tips or len(node.children) != 1:
        return
    child = node.children[0]
    assert node.parent is not None
    child.entries[:0] = node.entries
    child.parent = node.parent
    siblings = node.parent.children
    siblings[siblings.index(node)] = child


def _between(tip: Node, ancestor: Node) -> Iterator[Node]:
    node = tip
    while node is not ancestor:
        assert node.parent is not None
        parent = node.parent
        yield node
        node = parent


def _walk(roots: Iterable[Node]) -> Iterator[Node]:
    stack = [child for root in roots for child in root.children]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node.children)
