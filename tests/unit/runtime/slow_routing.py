"""The reference for routing: asks every replica about every prompt, and compares all of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import takewhile
from math import inf

from stoker.core.blocks import BLOCK_ENTRIES
from stoker.engine.protocol import Accepted
from stoker.runtime.cached_prefixes import GRACE_S, HEARD_S
from stoker.runtime.routing import BLOCK_TOKENS, Beginning
from stoker.runtime.standings import Candidate


def choose(
    candidates: Iterable[Candidate],
    matched: Mapping[int, int],
    avoids: Collection[int] = (),
    companion: int | None = None,
) -> int | None:
    """The number of the candidate with the lowest cost."""
    every = list(candidates)
    willing = [candidate for candidate in every if candidate.number not in avoids] or every

    def cost(candidate: Candidate) -> tuple[int, bool, int, int, float, int]:
        is_apart = candidate.number != companion or candidate.pressure > 0
        work = candidate.work - matched.get(candidate.number, 0)
        return candidate.pressure, is_apart, work, candidate.num_sent, candidate.rank, candidate.number

    best = min(willing, key=cost, default=None)
    return None if best is None else best.number


class SlowPrefixes:
    """Knows what `CachedPrefixes` knows, with one entry for each key of each replica."""

    def __init__(self, clock: Callable[[], float], max_keys: int) -> None:
        self._clock = clock
        self._max_keys = max_keys
        self.sent: dict[int, OrderedDict[bytes, float]] = {}
        self.held: dict[int, set[int]] = {}
        self.prompts: dict[bytes, Accepted] = {}
        self.texts: dict[bytes, int] = {}

    def matched(self, replica: int, beginning: Beginning) -> int:
        sent, now = self.sent.get(replica, {}), self._clock()
        num_sent = sum(1 for _ in takewhile(lambda key: sent.get(key, -inf) > now, beginning.keys))
        found = min(num_sent * BLOCK_TOKENS, beginning.num_tokens - 1)
        known = [index for index, key in enumerate(beginning.keys) if key in self.prompts]
        if replica not in self.held or not known:
            return found
        key = beginning.keys[known[-1]]
        accepted, held = self.prompts[key], self.held[replica]
        num_held = sum(1 for _ in takewhile(held.__contains__, accepted.blocks))
        tokens = int(num_held * (self.texts[key] * BLOCK_ENTRIES / accepted.prompt_tokens))
        return max(found, min((known[-1] + 1) * BLOCK_TOKENS, beginning.num_tokens - 1, tokens))

    def note(self, replica: int, beginning: Beginning, until: float = inf) -> None:
        sent = self.sent.setdefault(replica, OrderedDict())
        for key in reversed(beginning.keys):
            sent[key] = until
            sent.move_to_end(key)
        while len(sent) > self._max_keys:
            sent.popitem(last=False)

    def note_heard(self, replica: int, beginning: Beginning) -> None:
        self.note(replica, beginning, self._clock() + HEARD_S if replica in self.held else inf)

    def note_end(self, replica: int, beginning: Beginning) -> None:
        if replica in self.held:
            self.note(replica, beginning, self._clock() + GRACE_S)

    def note_accepted(self, beginning: Beginning, accepted: Accepted) -> None:
        if accepted.blocks:
            for key in beginning.keys:
                self.prompts[key], self.texts[key] = accepted, beginning.num_tokens

    def drop(self, replica: int) -> None:
        self.sent.pop(replica, None)
        self.held.pop(replica, None)
