"""Divides KV into the portions that are exported and restored, in one of three ways. It moves nothing.

```
    ranges   [ block | block | block | tail ]      any whole block of 32 positions, on its own; a part of one only
                                                   where a prompt or a conversation ends
    states   [ ————————►| ————►| ——►|          ]   all that a slot holds, at a few chosen lengths
    both     [ block | block | block | block   ]   whole blocks, once for all lengths, and at a few chosen lengths what
                      └state      └state           a slot holds besides, with the part of a block before it
```
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from typing import Protocol

from stoker.core import checkpoints
from stoker.core.batch import Entry, Transfer
from stoker.core.blocks import BLOCK_ENTRIES, Chain
from stoker.core.tiers import Tiers


class Portions(Protocol):
    """How the KV of one backend is divided. A `chain` holds the keys of the KV of one sequence or retained slot."""

    exports_while_running: bool
    """Some portions (states) can only be exported while the slot has exactly their length, see `exports_now`."""
    restores_whole: bool
    """A prefix is imported within one step as a whole, or not at all."""

    def prepare(self, chain: Chain, prompt: list[Entry]) -> None:
        """Adds the keys of a new prompt to `chain`, and marks the portions that are to be exported."""
        ...

    def grow(self, chain: Chain, entries: list[Entry]) -> None:
        """Adds the keys of new entries of a running sequence to `chain`."""
        ...

    def retain(self, chain: Chain, entries: list[Entry]) -> Chain:
        """The keys of a slot that a sequence leaves with these entries, for exports from the slot."""
        ...

    def ready(self, chain: Chain, limit: int) -> int:
        """Length of the longest prefix of a prompt, at most `limit`, that can be imported from RAM now."""
        ...

    def absent(self, chain: Chain, resident: int, limit: int) -> tuple[list[bytes], int]:
        """Keys that are on disk only, for a prefix longer than `resident`; and the length of that prefix."""
        ...

    def start_of(self, resident: int) -> int:
        """Length of the resident prefix that can stay in a slot into which more is imported."""
        ...

    def imports(self, slot: int, chain: Chain, start: int, end: int) -> Iterator[Transfer]:
        """Imports of the entries `start … end-1`, as far as their KV is in RAM."""
        ...

    def exports(self, slot: int, chain: Chain, length: int) -> Iterator[Transfer]:
        """Exports of KV in a slot of this length that the tiers do not hold yet. Yields each portion only once."""
        ...

    def exports_now(self, slot: int, chain: Chain, length: int) -> Iterator[Transfer]:
        """The part of `exports` that is possible at this length only."""
        ...

    def next_stop(self, chain: Chain, length: int) -> int | None:
        """The next length at which a chunk of a running sequence must end for an export; None = there is none."""
        ...


class Ranges:
    """Whole blocks, and tails where a later prompt may continue. For KV caches that can be cut at any position."""

    exports_while_running = False
    restores_whole = False

    def __init__(self, tiers: Tiers) -> None:
        self._tiers = tiers

    def prepare(self, chain: Chain, prompt: list[Entry]) -> None:
        chain.entries = prompt
        chain.extend(prompt)
        # The last entry of a prompt is always computed again, so a repetition of the prompt needs the others only.
        self._want_tail(chain, prompt, len(prompt) - 1)

    def grow(self, chain: Chain, entries: list[Entry]) -> None:
        chain.extend(entries)

    def retain(self, chain: Chain, entries: list[Entry]) -> Chain:
        chain.extend(entries)
        self._want_tail(chain, entries, len(entries))
        return chain

    def ready(self, chain: Chain, limit: int) -> int:
        length = _num_leading(chain.keys[: limit // BLOCK_ENTRIES], self._tiers.is_ready) * BLOCK_ENTRIES
        return self._longest_tail(chain, length, limit, self._tiers.is_ready)

    def absent(self, chain: Chain, resident: int, limit: int) -> tuple[list[bytes], int]:
        found: list[bytes] = []
        first, last = resident // BLOCK_ENTRIES, limit // BLOCK_ENTRIES
        length = last * BLOCK_ENTRIES
        for index, key in enumerate(chain.keys[first:last], start=first):
            if not self._tiers.holds(key):
                length = index * BLOCK_ENTRIES
                break
            if not self._tiers.is_ready(key):
                found.append(key)
        end = self._longest_tail(chain, length, limit, self._tiers.holds)
        if end > length and not self._tiers.is_ready(chain.marks[end]):
            found.append(chain.marks[end])
        return found, end

    def start_of(self, resident: int) -> int:
        return resident // BLOCK_ENTRIES * BLOCK_ENTRIES

    def imports(self, slot: int, chain: Chain, start: int, end: int) -> Iterator[Transfer]:
        for at in range(start, end - BLOCK_ENTRIES + 1, BLOCK_ENTRIES):
            key = chain.keys[at // BLOCK_ENTRIES]
            if not self._tiers.is_ready(key):
                return
            yield Transfer(slot, at, at + BLOCK_ENTRIES, key)
        tail = end - end % BLOCK_ENTRIES
        if start <= tail < end and self._tiers.is_ready(chain.marks[end]):
            yield Transfer(slot, tail, end, chain.marks[end])

    def exports(self, slot: int, chain: Chain, length: int) -> Iterator[Transfer]:
        if not chain.wanted and chain.num_kept >= length // BLOCK_ENTRIES:
            return  # nothing is due, as in nearly every step
        yield from _whole_blocks(slot, chain, length, self._tiers)
        for end in [end for end in chain.wanted if end <= length]:
            chain.wanted.discard(end)
            if not self._tiers.holds(chain.marks[end]):
                yield Transfer(slot, end - end % BLOCK_ENTRIES, end, chain.marks[end])

    def exports_now(self, slot: int, chain: Chain, length: int) -> Iterator[Transfer]:
        return iter(())

    def next_stop(self, chain: Chain, length: int) -> int | None:
        return None

    def _want_tail(self, chain: Chain, entries: list[Entry], length: int) -> None:
        # A tail without a whole block before it is too short to be worth restoring.
        if length > BLOCK_ENTRIES and length % BLOCK_ENTRIES:
            chain.marks[length] = chain.key_at(entries, length)
            chain.wanted.add(length)

    def _longest_tail(self, chain: Chain, start: int, limit: int, is_there: Callable[[bytes], bool]) -> int:
        """Length of the prefix with the longest available tail of the block that begins at `start`."""
        if start == 0:
            return 0
        for length in range(min(start + BLOCK_ENTRIES - 1, limit), start, -1):
            if length not in chain.marks:
                chain.marks[length] = chain.key_at(chain.entries, length)
            if is_there(chain.marks[length]):
                return length
        return start


class States:
    """Everything that a slot holds, at lengths chosen in advance. For recurrent models, whose state cannot be cut."""

    exports_while_running = True
    restores_whole = True

    def __init__(self, tiers: Tiers, eog_token_ids: Container[Entry]) -> None:
        self._tiers = tiers
        self._eog_token_ids = eog_token_ids

    def prepare(self, chain: Chain, prompt: list[Entry]) -> None:
        lengths = checkpoints.points(prompt, self._eog_token_ids)
        chain.marks = {length: self._name(chain, prompt, length) for length in lengths}
        # The last entry is always computed again: a state that includes it is of no use to this prompt.
        chain.wanted = set(checkpoints.choose(prompt, len(prompt) - 1, self._eog_token_ids))

    def grow(self, chain: Chain, entries: list[Entry]) -> None:
        pass

    def retain(self, chain: Chain, entries: list[Entry]) -> Chain:
        length, left = len(entries), Chain(chain.root)
        # The mark in `chain` lets a preempted sequence find the state again.
        left.marks[length] = chain.marks[length] = self._name(chain, entries, length)
        left.wanted = {length}
        left.keys, left.num_kept = chain.keys[: length // BLOCK_ENTRIES], chain.num_kept
        return left

    def ready(self, chain: Chain, limit: int) -> int:
        return self._longest(chain, 0, limit, self._tiers.is_ready)

    def absent(self, chain: Chain, resident: int, limit: int) -> tuple[list[bytes], int]:
        longest = self._longest(chain, resident, limit, self._tiers.holds)
        return [key for key in self._parts(chain, longest) if not self._tiers.is_ready(key)], longest

    def start_of(self, resident: int) -> int:
        return 0

    def imports(self, slot: int, chain: Chain, start: int, end: int) -> Iterator[Transfer]:
        *blocks, state = self._parts(chain, end)
        if start == 0 and all(map(self._tiers.is_ready, (*blocks, state))):
            for index, key in enumerate(blocks):
                yield Transfer(slot, index * BLOCK_ENTRIES, (index + 1) * BLOCK_ENTRIES, key, has_state=False)
            yield Transfer(slot, len(blocks) * BLOCK_ENTRIES, end, state)

    def exports(self, slot: int, chain: Chain, length: int) -> Iterator[Transfer]:
        yield from self.exports_now(slot, chain, length)

    def exports_now(self, slot: int, chain: Chain, length: int) -> Iterator[Transfer]:
        if length in chain.wanted:
            chain.wanted.discard(length)
            if not self._tiers.holds(chain.marks[length]):
                yield Transfer(slot, self._num_blocks(length) * BLOCK_ENTRIES, length, chain.marks[length])

    def next_stop(self, chain: Chain, length: int) -> int | None:
        return min((stop for stop in chain.wanted if stop > length), default=None)

    def _name(self, chain: Chain, entries: list[Entry], length: int) -> bytes:
        return chain.key_at(entries, length)

    def _num_blocks(self, length: int) -> int:
        """Number of whole blocks that are exported apart from a state."""
        return 0

    def _parts(self, chain: Chain, length: int) -> list[bytes]:
        """Keys of the whole blocks and, last, of the state that a prefix needs; empty if the length is 0."""
        return [*chain.keys[: self._num_blocks(length)], chain.marks[length]] if length else []

    def _longest(self, chain: Chain, above: int, limit: int, is_there: Callable[[bytes], bool]) -> int:
        """The greatest length in `above+1 … limit` for which all parts are available; 0 = none."""
        num_blocks = _num_leading(chain.keys[: self._num_blocks(limit)], is_there)
        fitting = sorted(n for n in chain.marks if above < n <= limit and self._num_blocks(n) <= num_blocks)
        return next((length for length in reversed(fitting) if is_there(chain.marks[length])), 0)


class BlocksAndStates(States):
    """Whole blocks of keys and values and, at lengths chosen in advance, recurrent states. For hybrid models whose keys
    and values can be exported apart (`CacheTraits.exports_apart`): several states of a prompt share its blocks.
    """

    def grow(self, chain: Chain, entries: list[Entry]) -> None:
        chain.extend(entries)

    def exports(self, slot: int, chain: Chain, length: int) -> Iterator[Transfer]:
        yield from self.exports_now(slot, chain, length)
        yield from _whole_blocks(slot, chain, length, self._tiers, has_state=False)

    def _name(self, chain: Chain, entries: list[Entry], length: int) -> bytes:
        return chain.state_key_at(entries, length)

    def _num_blocks(self, length: int) -> int:
        # At least the last entry belongs to the state.
        return max(0, length - 1) // BLOCK_ENTRIES


def _num_leading(keys: Sequence[bytes], is_there: Callable[[bytes], bool]) -> int:
    """Number of leading keys that are available."""
    return next((index for index, key in enumerate(keys) if not is_there(key)), len(keys))


def _whole_blocks(slot: int, chain: Chain, length: int, tiers: Tiers, *, has_state: bool = True) -> Iterator[Transfer]:
    """Exports of the whole blocks in a slot of this length that the tiers do not hold yet."""
    for index in range(chain.num_kept, min(length // BLOCK_ENTRIES, len(chain.keys))):
        # Counted before the export: a block whose export fails is not tried again.
        chain.num_kept = index + 1
        if not tiers.holds(chain.keys[index]):
            at = index * BLOCK_ENTRIES
            yield Transfer(slot, at, at + BLOCK_ENTRIES, chain.keys[index], has_state=has_state)
