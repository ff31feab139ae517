"""What each replica has cached of a prompt: what its engine says it holds, and what has just been sent there.

```
  text of a prompt ──► keys of its blocks of 256 bytes          the longest known beginning
                            │
  prompts seen before ──────┴──► numbers of its blocks of KV     as an engine has named them when it accepted the prompt
                                          │
  answers to `LookAtBlocks` ──────────────┴──► how many of them, from the first on, a replica holds
```

No prompt is tokenized here: an engine tokenizes each prompt anyway, and says which blocks it has become. A text of
which no engine has seen the beginning is in no cache. What was just sent counts as held until an engine has answered.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from math import inf

from stoker.core.blocks import BLOCK_ENTRIES
from stoker.engine.blocks_held import MEMORY, POOL, StoredBlocks
from stoker.engine.protocol import Accepted
from stoker.engine.question_messages import BlocksHeld
from stoker.runtime.routing import BLOCK_TOKENS, Affinity, Beginning

GRACE_S = 3.0
"""Time for which a prompt counts as held after its request has ended: by then the engine has said whether it is."""
HEARD_S = 15.0
"""Time for which a prompt counts as held that another process has sent."""
MAX_TEXTS = 65_536
"""Blocks of text whose blocks of KV are remembered: four million tokens, about 20 MiB."""


@dataclass(slots=True)
class HeldBlocks:
    """The blocks of one engine, as its answers add up."""

    ledger: str = ""
    serial: int = 0
    _held: dict[str, set[int]] = field(default_factory=lambda: {POOL: set[int](), MEMORY: set[int]()})

    def __contains__(self, number: int) -> bool:
        return number in self._held[POOL] or number in self._held[MEMORY]

    def __len__(self) -> int:
        return len(self._held[POOL] | self._held[MEMORY])

    def take(self, answer: BlocksHeld) -> bool:
        """Adds an answer. False: one before it is missing, so that only a whole one can be used."""
        if answer.is_whole:
            self._held = {POOL: set(), MEMORY: set()}
        elif (answer.ledger, answer.serial) == (self.ledger, self.serial):
            return True
        elif (answer.ledger, answer.serial - 1) != (self.ledger, self.serial):
            return False
        self.ledger, self.serial = answer.ledger, answer.serial
        for removed in answer.removed:
            self._held[removed.medium].difference_update(removed.numbers)
        for stored in answer.stored:
            self._held[stored.medium].update(stored.numbers)
        return True

    def whole(self) -> BlocksHeld:
        """All of it as one answer, for a reader that begins here."""
        stored = [StoredBlocks(medium, list(numbers)) for medium, numbers in self._held.items() if numbers]
        return BlocksHeld("", self.ledger, self.serial, is_whole=True, stored=stored, removed=[])

    def num_leading(self, numbers: Sequence[int]) -> int:
        """How many of these blocks it holds, from the first one on."""
        return sum(1 for _ in takewhile(self.__contains__, numbers))


@dataclass(frozen=True, slots=True)
class KnownPrompt:
    """A prompt that an engine has tokenized."""

    blocks: Sequence[int]
    """Numbers of its whole blocks."""
    block_tokens: float
    """Tokens of a block, as they are counted in a `Beginning`."""


class CachedPrefixes:
    """Belongs to one event loop.

    Args:
        clock: seconds; only differences count.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sent = Affinity()
        self._held: dict[int, HeldBlocks] = {}
        """By replica; a replica that is missing says nothing, and what was sent to it counts as held for good."""
        self._prompts: OrderedDict[bytes, KnownPrompt] = OrderedDict()
        """By the key of each block of their text, those that were used longest ago first."""

    @property
    def hears(self) -> bool:
        """Some engine says what it holds."""
        return bool(self._held)

    def num_blocks(self, replica: int) -> int | None:
        """How many blocks a replica holds; None = it has not said."""
        held = self._held.get(replica)
        return None if held is None else len(held)

    def matched_tokens(self, beginning: Beginning) -> Callable[[int], int]:
        """For one prompt: a function that says how many of its tokens a replica need not compute."""
        known, num_shared = self._find(beginning)
        limit, now = min(num_shared, beginning.num_tokens - 1), self._clock()

        def matched(replica: int) -> int:
            sent = self._sent.matched_tokens(replica, beginning, now)
            held = self._held.get(replica)
            if held is None or known is None:
                return sent
            return max(sent, min(limit, int(held.num_leading(known.blocks) * known.block_tokens)))

        return matched

    def note_sent(self, replica: int, beginning: Beginning) -> None:
        """A request with this prompt was sent to a replica."""
        self._sent.note(replica, beginning)

    def note_heard(self, replica: int, beginning: Beginning) -> None:
        """Another process has sent a request with this prompt, and will not say when it ends."""
        says = replica in self._held
        self._sent.note(replica, beginning, self._clock() + HEARD_S if says else inf)

    def note_end(self, replica: int, beginning: Beginning) -> None:
        """A request is not at a replica any more: what the engine says counts soon, instead of what was sent."""
        if replica in self._held:
            self._sent.note(replica, beginning, self._clock() + GRACE_S)

    def note_accepted(self, beginning: Beginning, accepted: Accepted) -> None:
        """An engine has tokenized a prompt, and named its blocks."""
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
        """An engine says which blocks it holds. False: an answer before this one is missing; ask for a whole one."""
        if answer.is_whole and self._held.get(replica, HeldBlocks()).ledger != answer.ledger:
            self._sent.forget(replica)  # it was sent to a process that has died, or that has been silent until now
        return self._held.setdefault(replica, HeldBlocks()).take(answer)

    def forget_sent(self, replica: int) -> None:
        """The cache of a replica is empty."""
        self._sent.forget(replica)

    def drop(self, replica: int) -> None:
        """There is no replica of this number any more."""
        self._sent.forget(replica)
        self._held.pop(replica, None)

    def _find(self, beginning: Beginning) -> tuple[KnownPrompt | None, int]:
        """A prompt with the longest known beginning of this text, and how many tokens they share."""
        for index in range(len(beginning.keys) - 1, -1, -1):
            if (known := self._prompts.get(beginning.keys[index])) is not None:
                return known, (index + 1) * BLOCK_TOKENS
        return None, 0
