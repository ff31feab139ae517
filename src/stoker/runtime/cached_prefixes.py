"""Knows which prefix of a prompt each replica has cached: what its engine reports, and what was just sent there.

```
  text of a prompt ──► keys of its blocks of 256 bytes          the longest known prefix
                            │
  prompts seen before ──────┴──► numbers of its blocks of KV     as an engine named them when it accepted the prompt
                                          │
  answers to `LookAtBlocks` ──────────────┴──► number of leading blocks that a replica holds
```

No prompt is tokenized here: the engine tokenizes each prompt anyway, and reports the prompt's blocks of KV. A text
whose beginning no engine has seen is in no cache. A prompt that was just sent counts as cached until a report comes.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

from stoker.core.blocks import BLOCK_ENTRIES
from stoker.engine.blocks_held import MEMORY, POOL, StoredBlocks
from stoker.engine.protocol import Accepted
from stoker.engine.question_messages import BlocksHeld
from stoker.runtime.prefix_holders import PrefixHolders
from stoker.runtime.routing import BLOCK_TOKENS, Affinity, Beginning
from stoker.runtime.standings import Matches

GRACE_S = 3.0
"""Seconds for which a prompt counts as cached after its request has ended. By then, the engine reports its blocks."""
HEARD_S = 15.0
"""Seconds for which a prompt that another process sent counts as cached."""
MAX_TEXTS = 65_536
"""Maximum number of blocks of text whose blocks of KV are remembered: four million tokens, about 20 MiB."""


@dataclass(slots=True)
class HeldBlocks:
    """The set of blocks that one engine holds, built from its answers, each of which has the changes since the last."""

    ledger: str = ""
    serial: int = 0
    _pool: set[int] = field(default_factory=set[int])
    _memory: set[int] = field(default_factory=set[int])

    def __contains__(self, number: int) -> bool:
        return number in self._pool or number in self._memory

    def __len__(self) -> int:
        return len(self._pool | self._memory)

    def take(self, answer: BlocksHeld) -> bool:
        """Adds an answer. False = an earlier answer is missing, so that an answer with all blocks is needed."""
        if answer.is_whole:
            self._pool, self._memory = set(), set()
        elif (answer.ledger, answer.serial) == (self.ledger, self.serial):
            return True
        elif (answer.ledger, answer.serial - 1) != (self.ledger, self.serial):
            return False
        self.ledger, self.serial = answer.ledger, answer.serial
        held = {POOL: self._pool, MEMORY: self._memory}
        for removed in answer.removed:
            held[removed.medium].difference_update(removed.numbers)
        for stored in answer.stored:
            held[stored.medium].update(stored.numbers)
        return True

    def whole(self) -> BlocksHeld:
        """All blocks as one answer, for a reader that has seen no answer before."""
        media = ((POOL, self._pool), (MEMORY, self._memory))
        stored = [StoredBlocks(medium, list(numbers)) for medium, numbers in media if numbers]
        return BlocksHeld("", self.ledger, self.serial, is_whole=True, stored=stored, removed=[])

    def num_leading(self, numbers: Sequence[int], known: int = 0) -> int:
        """How many of these blocks, from the first one on, the engine holds without a gap.

        Args:
            numbers: of the blocks.
            known: how many it is known to hold.
        """
        pool, memory = self._pool, self._memory
        for index in range(known, len(numbers)):
            number = numbers[index]
            if number not in pool and number not in memory:
                return index
        return len(numbers)


@dataclass(frozen=True, slots=True)
class KnownPrompt:
    """A prompt that an engine has tokenized, with its blocks of KV."""

    blocks: Sequence[int]
    """Numbers of the prompt's whole blocks of KV."""
    block_tokens: float
    """Tokens of one block, in the estimated tokens of a `Beginning`."""


class CachedPrefixes:
    """The cached prefixes of all replicas of one model. Belongs to one event loop.

    Args:
        clock: seconds; only differences count.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sent = Affinity(clock)
        self._held: dict[int, HeldBlocks] = {}
        """Reported blocks by replica. Prompts sent to a replica that reports no blocks count as cached for good."""
        self._all_held = 0
        """The replicas in `_held`, see `prefix_holders`."""
        self._holders = PrefixHolders(self._num_leading, self._holding)
        self._prompts: OrderedDict[bytes, KnownPrompt] = OrderedDict()
        """Prompts by the key of each block of their text, the least recently used first."""

    @property
    def hears(self) -> bool:
        """Whether any engine reports its blocks."""
        return bool(self._held)

    def num_blocks(self, replica: int) -> int | None:
        """How many blocks a replica holds; None = it has sent no report."""
        held = self._held.get(replica)
        return None if held is None else len(held)

    def matches(self, beginning: Beginning) -> Matches:
        """For one prompt: the estimated prompt tokens that each replica need not compute."""
        sent = self._sent.matches(beginning)
        known, num_shared = self._find(beginning)
        if known is None:
            return sent
        limit = min(num_shared, beginning.num_tokens - 1)
        groups = self._holders.groups(known.blocks, self._all_held)
        return [*sent, *((min(limit, int(count * known.block_tokens)), replicas) for count, replicas in groups)]

    def note_sent(self, replica: int, beginning: Beginning) -> None:
        """Notes that a request with this prompt was sent to a replica."""
        self._sent.note(replica, beginning)

    def note_heard(self, replica: int, beginning: Beginning) -> None:
        """Notes that another process sent a request with this prompt. That process does not tell when it ends."""
        says = replica in self._held
        self._sent.note(replica, beginning, self._clock() + HEARD_S if says else inf)

    def note_end(self, replica: int, beginning: Beginning) -> None:
        """Notes that a request left a replica: after `GRACE_S`, only the engine's report says whether it is cached."""
        if replica in self._held:
            self._sent.note(replica, beginning, self._clock() + GRACE_S)

    def note_accepted(self, beginning: Beginning, accepted: Accepted) -> None:
        """Notes the blocks of KV of a prompt that an engine has tokenized."""
        if not accepted.blocks:
            return
        tokens = beginning.num_tokens * BLOCK_ENTRIES / accepted.prompt_tokens
        known = KnownPrompt(accepted.blocks, tokens)
        for key in reversed(beginning.keys):
            self._prompts[key] = known
            self._prompts.move_to_end(key)
        while len(self._prompts) > MAX_TEXTS:
            self._prompts.popitem(last=False)

    def note_held(self, replica: int, answer: BlocksHeld) -> bool:
        """Notes an engine's report of its blocks. False = an earlier report is missing; ask for all blocks."""
        if answer.is_whole and self._held.get(replica, HeldBlocks()).ledger != answer.ledger:
            self._sent.forget(replica)  # sent to a process that has died, or that has not reported before
        held = self._held.setdefault(replica, HeldBlocks())
        self._all_held |= 1 << replica
        if not held.take(answer):
            return False
        if answer.is_whole:
            self._holders.review(replica, held.__contains__)
        for run in (*answer.removed, *answer.stored):
            for number in run.numbers:
                self._holders.note(replica, number, has=number in held)
        return True

    def forget_sent(self, replica: int) -> None:
        """Forgets which prompts were sent to a replica: its cache is empty."""
        self._sent.forget(replica)

    def drop(self, replica: int) -> None:
        """Forgets all of a replica that was removed."""
        self._sent.forget(replica)
        self._held.pop(replica, None)
        self._all_held &= ~(1 << replica)
        self._holders.review(replica, lambda _number: False)

    def _num_leading(self, replica: int, numbers: Sequence[int], known: int) -> int:
        return self._held[replica].num_leading(numbers, known)

    def _holding(self, number: int) -> int:
        found = 0
        for replica, held in self._held.items():
            if number in held:
                found |= 1 << replica
        return found

    def _find(self, beginning: Beginning) -> tuple[KnownPrompt | None, int]:
        """A known prompt that shares the longest prefix with this text, and the tokens of that prefix."""
        for index in range(len(beginning.keys) - 1, -1, -1):
            if (known := self._prompts.get(beginning.keys[index])) is not None:
                return known, (index + 1) * BLOCK_TOKENS
        return None, 0
