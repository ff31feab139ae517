"""In which portions KV is exported and restored: two answers to one question. They move nothing.

```
    ranges   [ block | block | block | tail ]      any whole block of 32 positions, on its own; a part of one only
                                                   where a prompt or a conversation ends
    states   [ ————————►| ————►| ——►|          ]   all that a slot holds, at a few chosen lengths
```
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from typing import Protocol

from stoker.core import checkpoints
from stoker.core.batch import Entry, Transfer
from stoker.core.blocks import BLOCK_ENTRIES, Chain
from stoker.core.tiers import Tiers


class Portions(Protocol):
    """How a backend's KV is divided. `chain` belongs to the entries, and names all of them."""

    exports_while_running: bool
    """A portion can only be taken when the slot is exactly as long as it."""

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

    def next_stop(self, chain: Chain, length: int) -> int | None:
        """The next length at which a running sequence has to stop for an export."""
        ...


class Ranges:
    """Whole blocks, and tails where the next prompt may go on. For KV in which every position is on its own."""

    exports_while_running = False

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
        keys = chain.keys[: limit // BLOCK_ENTRIES]
        num_ready = next((index for index, key in enumerate(keys) if not self._tiers.is_ready(key)), len(keys))
        length = num_ready * BLOCK_ENTRIES
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
        for index in range(chain.num_kept, min(length // BLOCK_ENTRIES, len(chain.keys))):
            # Noted first: one whose export fails is not tried for ever.
            chain.num_kept = index + 1
            if not self._tiers.holds(chain.keys[index]):
                yield Transfer(slot, index * BLOCK_ENTRIES, (index + 1) * BLOCK_ENTRIES, chain.keys[index])
        for end in [end for end in chain.wanted if end <= length]:
            chain.wanted.discard(end)
            if not self._tiers.holds(chain.marks[end]):
                yield Transfer(slot, end - end % BLOCK_ENTRIES, end, chain.marks[end])

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

    def __init__(self, tiers: Tiers, eog_token_ids: Container[Entry]) -> None:
        self._tiers = tiers
        self._eog_token_ids = eog_token_ids

    def prepare(self, chain: Chain, prompt: list[Entry]) -> None:
        lengths = checkpoints.points(prompt, self._eog_token_ids)
        chain.marks = {length: chain.key_at(prompt, length) for length in lengths}
        # The last entry is computed again in any case: a state behind it could not be used for this prompt.
        chain.wanted = set(checkpoints.choose(prompt, len(prompt) - 1, self._eog_token_ids))

    def grow(self, chain: Chain, entries: list[Entry]) -> None:
        pass

    def retain(self, chain: Chain, entries: list[Entry]) -> Chain:
        length, left = len(entries), Chain(chain.root)
        # A sequence that was preempted finds it too.
        left.marks[length] = chain.marks[length] = chain.key_at(entries, length)
        left.wanted = {length}
        return left

    def ready(self, chain: Chain, limit: int) -> int:
        fitting = (length for length, key in chain.marks.items() if length <= limit and self._tiers.is_ready(key))
        return max(fitting, default=0)

    def absent(self, chain: Chain, resident: int, limit: int) -> tuple[list[bytes], int]:
        between = [length for length in chain.marks if resident < length <= limit]
        longest = max((length for length in between if self._tiers.holds(chain.marks[length])), default=0)
        is_absent = longest > 0 and not self._tiers.is_ready(chain.marks[longest])
        return ([chain.marks[longest]] if is_absent else []), longest

    def start_of(self, resident: int) -> int:
        return 0

    def imports(self, slot: int, chain: Chain, start: int, end: int) -> Iterator[Transfer]:
        if start == 0 and self._tiers.is_ready(chain.marks[end]):
            yield Transfer(slot, 0, end, chain.marks[end])

    def exports(self, slot: int, chain: Chain, length: int) -> Iterator[Transfer]:
        if length in chain.wanted:
            chain.wanted.discard(length)
            if not self._tiers.holds(chain.marks[length]):
                yield Transfer(slot, 0, length, chain.marks[length])

    def next_stop(self, chain: Chain, length: int) -> int | None:
        return min((stop for stop in chain.wanted if stop > length), default=None)
