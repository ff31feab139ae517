"""Which replica gets a request: the one that has the least to do until it is answered. It sends nothing.

What a replica would have to do is the work that lies there already, and as much of the new prompt as is not likely to
lie in its cache: so a conversation goes on where it began until that costs more than computing it elsewhere. Counting
both in tokens is what NVIDIA Dynamo's router does; remembering what was sent where, instead of asking, is SGLang's.

```
prompt   [ 256 bytes | 256 bytes | … rest ]     an id of a token counts as 4 bytes, about what its text takes
keys       k0 ──────►  k1 ──────►                k1 = H(k0, block): equal beginnings have equal keys
```
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from math import inf

from stoker.core.media import Span
from stoker.engine.protocol import PlacedPrompt

BLOCK_BYTES = 256
TOKEN_BYTES = 4
"""Of text, on average; only relations count."""
BLOCK_TOKENS = BLOCK_BYTES // TOKEN_BYTES
MAX_BLOCKS = 1024
"""Of one prompt: what lies beyond 64 thousand tokens does not decide where it goes."""
MAX_KEYS = 16_384
"""Remembered of one replica, about 2 MiB: a million tokens."""
KV_FULL = 0.95
"""A pool that running requests fill so far has no room for another."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """A prompt as far as it decides where it goes."""

    keys: tuple[bytes, ...]
    """One for each whole block, from the first on."""
    num_tokens: int
    """Of the whole prompt, roughly; at least 1."""


def beginning_of(prompt: PlacedPrompt, root: bytes = b"") -> Beginning:
    """The keys of a prompt.

    Args:
        prompt: text, token ids and images, in turn.
        root: what a cached prompt depends on besides, such as the adapters.
    """
    parts: Iterable[int | str | Span] = [prompt] if isinstance(prompt, str) else prompt
    return Beginning(tuple(_keys(_first_bytes(parts), root)), size_of(prompt))


def size_of(prompt: PlacedPrompt) -> int:
    """The number of tokens of a prompt, roughly; at least 1."""
    parts: Iterable[int | str | Span] = [prompt] if isinstance(prompt, str) else prompt
    return sum(_size(part) for part in parts) // TOKEN_BYTES + 1


def _size(part: int | str | Span) -> int:
    if isinstance(part, str):
        return len(part)
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
    """What was sent to which replica last, and so is likely to lie in its cache still.

    Args:
        max_keys: remembered of each replica; those leave that were not used for longest, ends before beginnings.
    """

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._max_keys = max_keys
        self._sent: dict[int, OrderedDict[bytes, float]] = {}
        """Of each key: until when it counts."""

    def matched_tokens(self, replica: int, beginning: Beginning, now: float = -inf) -> int:
        """How much of the prompt lies there, if nothing has left; always less than all of it."""
        sent = self._sent.get(replica, OrderedDict())
        num_blocks = 0
        for key in beginning.keys:
            if sent.get(key, -inf) <= now:
                break
            num_blocks += 1
        return min(num_blocks * BLOCK_TOKENS, beginning.num_tokens - 1)

    def note(self, replica: int, beginning: Beginning, until: float = inf) -> None:
        """It was sent there, and counts until a time on the clock of `matched_tokens`."""
        sent = self._sent.setdefault(replica, OrderedDict())
        for key in reversed(beginning.keys):
            sent[key] = until
            sent.move_to_end(key)
        while len(sent) > self._max_keys:
            sent.popitem(last=False)

    def forget(self, replica: int) -> None:
        """Its cache is empty."""
        self._sent.pop(replica, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A replica that could take a request."""

    number: int
    work: int
    """Tokens that it has still to compute, prompts and answers."""
    matched: int = 0
    """Tokens of the new prompt that it need not compute."""
    num_open: int = 0
    """Requests that run and wait there."""
    parallel: int = 1
    """How many run at the same time."""
    max_open: int = 1
    """One more is refused."""
    kv_usage: float = 0.0
    """Part of its KV that running requests hold."""
    num_sent: int = 0
    """Ever."""
    rank: float = 0.0
    """Order among equals, before the number. Random where several processes choose: they would else choose alike."""

    @property
    def pressure(self) -> int:
        """0 = it begins at once, 1 = it would have to wait, 2 = it would be refused."""
        if self.num_open >= self.max_open:
            return 2
        return int(self.num_open >= self.parallel or self.kv_usage >= KV_FULL)


def choose(candidates: Iterable[Candidate], beginning: Beginning, *, companion: int | None = None) -> int | None:
    """The number of the replica for the request; None if there is no candidate.

    No request is routed to a replica where it has to wait while another has a free place, whatever is cached.

    Args:
        candidates: those that can be asked, in any order.
        beginning: of the prompt.
        companion: where requests of the same group went; they go there too while it has a free place.
    """

    def cost(candidate: Candidate) -> tuple[int, bool, int, int, float, int]:
        is_apart = candidate.number != companion or candidate.pressure > 0
        work = candidate.work + beginning.num_tokens - candidate.matched
        return candidate.pressure, is_apart, work, candidate.num_sent, candidate.rank, candidate.number

    best = min(candidates, key=cost, default=None)
    return None if best is None else best.number
