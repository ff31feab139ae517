"""In which portions KV is exported and restored: three answers to one question. They move nothing.

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
    """How a backend's KV is divided. `chain` belongs to the entries, and names all of them."""

    exports_while_running: bool
    """Some portions can only be taken when the slot is exactly as long as they are: see `exports_now`."""
    restores_whole: bool
    """What leads from nothing to a length goes into a slot within one step, or not at all."""

    def prepare(self, chain: Chain, prompt: list[Entry]) -> None:
        """Notes what of a new prompt can be found and is to be kept."""
        ...

    def grow(self, chain: Chain, entries: list[Entry]) -> None:
        """Notes what has been added to a running sequence."""
        ...

    def retain(self, chain: Chain, entries: list[Entry]) -> Chain:
        """Names what a sequence leaves behind in its slot, `entries`, for the slot's own use."""
        ...

    def ready(self, chain: Chain, limit: int) -> int:
        """How much of a prompt could go into a slot now: a length of at most `limit`."""
        ...

    def absent(self, chain: Chain, resident: int, limit: int) -> tuple[list[bytes], int]:
        """What the tiers hold of a prompt beyond `resident`, but not in memory; and how long a prefix it makes."""
        ...

    def start_of(self, resident: int) -> int:
        """How much of what is resident can stay in a slot into which more is imported."""
        ...

    def imports(self, slot: int, chain: Chain, start: int, end: int) -> Iterator[Transfer]:
        """What leads from `start` to `end`, as far as it is in memory."""
        ...

    def exports(self, slot: int, chain: Chain, length: int) -> Iterator[Transfer]:
        """What of a slot of this length the tiers do not hold yet. Whatever is taken from it, it gives only once."""
        ...

    def exports_now(self, slot: int, chain: Chain, length: int) -> Iterator[Transfer]:
        """Of that, what can be had at this length only."""
        ...

    def next_stop(self, chain: Chain, length: int) -> int | None:
        """The next length at which a running sequence has to stop for an export."""
        ...


class Ranges:
    """Whole blocks, and tails where the next prompt may go on. For KV in which every position is on its own."""

    exports_while_running = False
    restores_whole = False

    def __init__(self, tiers: Tiers) -> None:
        self._tiers = tiers

    def prepare(self, chain: Chain, prompt: list[Entry]) -> None:
        chain.entries = prompt
        chain.extend(prompt)
        # The last entry is computed again in any case: the same prompt once more needs the others.
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
            return  # as in nearly every step
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
        # Without a whole block before it, a tail is not worth a restoration.
        if length > BLOCK_ENTRIES and length % BLOCK_ENTRIES:
            chain.marks[length] = chain.key_at(entries, length)
            chain.wanted.add(length)

    def _longest_tail(self, chain: Chain, start: int, limit: int, is_there: Callable[[bytes], bool]) -> int:
        """How long a prefix becomes with what is there of the block that begins at `start`."""
        if start == 0:
            return 0
        for length in range(min(start + BLOCK_ENTRIES - 1, limit), start, -1):
            if length not in chain.marks:
                chain.marks[length] = chain.key_at(chain.entries, length)
            if is_there(chain.marks[length]):
                return length
        return start


class States:
    """Everything that a slot holds, at lengths chosen beforehand. For models that cannot be cut back."""

    exports_while_running = True
    restores_whole = True

    def __init__(self, tiers: Tiers, eog_token_ids: Container[Entry]) -> None:
        self._tiers = tiers
        self._eog_token_ids = eog_token_ids

    def prepare(self, chain: Chain, prompt: list[Entry]) -> None:
        lengths = checkpoints.points(prompt, self._eog_token_ids)
        chain.marks = {length: self._name(chain, prompt, length) for length in lengths}
        # The last entry is computed again in any case: a state behind it could not be used for this prompt.
        chain.wanted = set(checkpoints.choose(prompt, len(prompt) - 1, self._eog_token_ids))

    def grow(self, chain: Chain, entries: list[Entry]) -> None:
        pass

    def retain(self, chain: Chain, entries: list[Entry]) -> Chain:
        length, left = len(entries), Chain(chain.root)
        # A sequence that was preempted finds it too.
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
        """Whole blocks that are kept apart from a state."""
        return 0

    def _parts(self, chain: Chain, length: int) -> list[bytes]:
        """The names of everything that leads to a state, which is the last; nothing if the length is 0."""
        return [*chain.keys[: self._num_blocks(length)], chain.marks[length]] if length else []

    def _longest(self, chain: Chain, above: int, limit: int, is_there: Callable[[bytes], bool]) -> int:
        """The greatest length above one number, and at most another, to which everything is there; else 0."""
        num_blocks = _num_leading(chain.keys[: self._num_blocks(limit)], is_there)
        fitting = sorted(n for n in chain.marks if above < n <= limit and self._num_blocks(n) <= num_blocks)
        return next((length for length in reversed(fitting) if is_there(chain.marks[length])), 0)


class BlocksAndStates(States):
    """Whole blocks, and at lengths chosen beforehand what a slot holds besides. For models that cannot be cut back,
    whose keys and values can be had by themselves: however many states a prompt has, its blocks are kept once.
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
    """How many of these names are there before the first one that is not."""
    return next((index for index, key in enumerate(keys) if not is_there(key)), len(keys))


def _whole_blocks(slot: int, chain: Chain, length: int, tiers: Tiers, *, has_state: bool = True) -> Iterator[Transfer]:
    """Blocks of a slot of this length that the tiers do not hold yet."""
    for index in range(chain.num_kept, min(length // BLOCK_ENTRIES, len(chain.keys))):
        # Noted first: one whose export fails is not tried for ever.
        chain.num_kept = index + 1
        if not tiers.holds(chain.keys[index]):
            at = index * BLOCK_ENTRIES
            yield Transfer(slot, at, at + BLOCK_ENTRIES, chain.keys[index], has_state=has_state)
