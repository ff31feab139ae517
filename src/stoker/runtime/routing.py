"""Describes the prefix of a prompt by keys, and remembers which prefixes were sent to each replica. Sends nothing.

A request goes to the replica that has to compute the fewest tokens until it is answered, see `standings`. A
conversation therefore stays on one replica until that costs more than computing its prompt elsewhere. Counting both
in tokens is from NVIDIA Dynamo's router; remembering what was sent where, instead of asking engines, is from SGLang's.

```
prompt   [ 256 bytes | 256 bytes | … rest ]     an id of a token counts as 4 bytes, about what its text takes
keys       k0 ──────►  k1 ──────►                k1 = H(k0, block): equal prefixes have equal keys
```
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from heapq import heappop, heappush
from math import inf

from stoker.core.media import Span
from stoker.engine.protocol import PlacedPrompt
from stoker.runtime.prefix_holders import PrefixHolders
from stoker.runtime.standings import Matches

BLOCK_BYTES = 256
TOKEN_BYTES = 4
"""Bytes of text per token, on average; only ratios of token counts matter."""
BLOCK_TOKENS = BLOCK_BYTES // TOKEN_BYTES
MAX_BLOCKS = 1024
"""Maximum number of blocks of a prompt that routing looks at: the first 64 thousand tokens decide."""
MAX_KEYS = 16_384
"""Maximum number of keys remembered for each replica: a million tokens, in about 2 MiB."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """The prefix keys and the size of a prompt, which decide the replica that it is sent to."""

    keys: tuple[bytes, ...]
    """One key for each whole block of `BLOCK_BYTES`, in order; each depends on all blocks before it."""
    num_tokens: int
    """Estimated tokens of the whole prompt; at least 1."""


def beginning_of(prompt: PlacedPrompt, root: bytes = b"") -> Beginning:
    """The prefix keys and the size of a prompt.

    Args:
        prompt: text, or a sequence of text, token ids and media.
        root: what cached KV depends on besides the prompt, such as the adapters.
    """
    parts: Iterable[int | str | Span] = [prompt] if isinstance(prompt, str) else prompt
    return Beginning(tuple(_keys(_first_bytes(parts), root)), size_of(prompt))


def size_of(prompt: PlacedPrompt) -> int:
    """The number of tokens of a prompt, roughly; at least 1."""
    parts: Iterable[int | str | Span] = [prompt] if isinstance(prompt, str) else prompt
    return sum(_size(part) for part in parts) // TOKEN_BYTES + 1


def _size(part: int | str | Span) -> int:
    if isinstance(part, str):
        return len(part) if part.isascii() else len(part.encode("utf-8", "surrogatepass"))
    return TOKEN_BYTES * (part.length if isinstance(part, Span) else 1)


def _first_bytes(parts: Iterable[int | str | Span]) -> bytes:
    limit, found = MAX_BLOCKS * BLOCK_BYTES, bytearray()
    for part in parts:
        if isinstance(part, int):
            found += (part % 2**32).to_bytes(TOKEN_BYTES, "little")
        elif isinstance(part, Span):
            size = min(_size(part), limit)
            found += (part.key * (size // len(part.key) + 1))[:size]
        else:
            found += part[:limit].encode("utf-8", "surrogatepass")
        if len(found) >= limit:
            break
    return bytes(found[:limit])


def _keys(raw: bytes, root: bytes) -> Iterable[bytes]:
    chain = blake2b(root, digest_size=16)
    for start in range(0, len(raw) - BLOCK_BYTES + 1, BLOCK_BYTES):
        chain.update(raw[start : start + BLOCK_BYTES])
        yield chain.digest()


class Affinity:
    """The prompts that were sent to each replica lately and so are probably still in its prefix cache.

    Args:
        clock: seconds; only differences count.
        max_keys: keys remembered for each replica. The least recently used are forgotten, the end of a prompt first.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, max_keys: int = MAX_KEYS) -> None:
        self._clock = clock
        self._max_keys = max_keys
        self._sent: dict[int, OrderedDict[bytes, float]] = {}
        """For each replica and key: the time until which the key counts as cached."""
        self._all = 0
        """The replicas in `_sent`, see `prefix_holders`."""
        self._ends: list[tuple[float, int, tuple[bytes, ...]]] = []
        """A heap of the times at which keys of a replica may stop to count."""
        self._holders = PrefixHolders(self._count, self._having)

    def matches(self, beginning: Beginning) -> Matches:
        """Tokens of the prompt that were sent to each replica before and still count; always less than all tokens."""
        self._expire()
        limit = beginning.num_tokens - 1
        groups = self._holders.groups(beginning.keys, self._all)
        return [(min(num_blocks * BLOCK_TOKENS, limit), replicas) for num_blocks, replicas in groups]

    def note(self, replica: int, beginning: Beginning, until: float = inf) -> None:
        """Notes that the prompt was sent to the replica; it counts until the time `until` on the clock."""
        self._expire()
        sent = self._sent.setdefault(replica, OrderedDict())
        self._all |= 1 << replica
        for key in reversed(beginning.keys):
            sent[key] = until
            sent.move_to_end(key)
            self._holders.note(replica, key, has=True)
        if until < inf and beginning.keys:
            heappush(self._ends, (until, replica, beginning.keys))
        while len(sent) > self._max_keys:
            self._holders.note(replica, sent.popitem(last=False)[0], has=False)

    def forget(self, replica: int) -> None:
        """Forgets what was sent to a replica, whose cache is empty."""
        self._sent.pop(replica, None)
        self._all &= ~(1 << replica)
        self._holders.review(replica, lambda _key: False)

    def _expire(self) -> None:
        """Notes which keys have stopped to count."""
        now = self._clock()
        while self._ends and self._ends[0][0] <= now:
            _, replica, keys = heappop(self._ends)
            sent = self._sent.get(replica, OrderedDict())
            for key in keys:
                if sent.get(key, now) <= now:
                    self._holders.note(replica, key, has=False)

    def _count(self, replica: int, keys: Sequence[bytes], start: int) -> int:
        sent, now = self._sent[replica], self._clock()
        for index in range(start, len(keys)):
            if sent.get(keys[index], now) <= now:
                return index
        return len(keys)

    def _having(self, key: bytes) -> int:
        found, now = 0, self._clock()
        for replica, sent in self._sent.items():
            if sent.get(key, now) > now:
                found |= 1 << replica
        return found
