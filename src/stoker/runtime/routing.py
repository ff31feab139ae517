"""Chooses the replica for a request: the one that has to compute the fewest tokens until it is answered. Sends nothing.

The cost of a replica is its pending work plus the tokens of the new prompt that are probably not in its prefix cache.
A conversation therefore stays on one replica until that costs more than computing its prompt elsewhere. Counting both
in tokens is from NVIDIA Dynamo's router; remembering what was sent where, instead of asking engines, is from SGLang's.

```
prompt   [ 256 bytes | 256 bytes | … rest ]     an id of a token counts as 4 bytes, about what its text takes
keys       k0 ──────►  k1 ──────►                k1 = H(k0, block): equal prefixes have equal keys
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
"""Bytes of text per token, on average; only ratios of token counts matter."""
BLOCK_TOKENS = BLOCK_BYTES // TOKEN_BYTES
MAX_BLOCKS = 1024
"""Maximum number of blocks of a prompt that routing looks at: the first 64 thousand tokens decide."""
MAX_KEYS = 16_384
"""Maximum number of keys remembered for each replica: a million tokens, in about 2 MiB."""
KV_FULL = 0.95
"""Fraction of the KV pool in use by running requests from which on a replica counts as full."""


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
    """The prompts that were sent to each replica lately and so are probably still in its prefix cache.

    Args:
        max_keys: keys remembered for each replica. The least recently used are forgotten, the end of a prompt first.
    """

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._max_keys = max_keys
        self._sent: dict[int, OrderedDict[bytes, float]] = {}
        """For each replica and key: the time until which the key counts as cached."""

    def matched_tokens(self, replica: int, beginning: Beginning, now: float = -inf) -> int:
        """Tokens of the prompt that were sent to the replica before and still count; always less than all tokens.

        Args:
            replica: the replica's number.
            beginning: of the prompt.
            now: the time on the clock of `note`; keys that count until then or earlier are ignored.
        """
        sent = self._sent.get(replica, OrderedDict())
        num_blocks = 0
        for key in beginning.keys:
            if sent.get(key, -inf) <= now:
                break
            num_blocks += 1
        return min(num_blocks * BLOCK_TOKENS, beginning.num_tokens - 1)

    def note(self, replica: int, beginning: Beginning, until: float = inf) -> None:
        """Notes that the prompt was sent to the replica; it counts until the time `until`, see `matched_tokens`."""
        sent = self._sent.setdefault(replica, OrderedDict())
        for key in reversed(beginning.keys):
            sent[key] = until
            sent.move_to_end(key)
        while len(sent) > self._max_keys:
            sent.popitem(last=False)

    def forget(self, replica: int) -> None:
        """Forgets what was sent to a replica, whose cache is empty."""
        self._sent.pop(replica, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A replica that a request could be sent to, with what decides the choice."""

    number: int
    work: int
    """Tokens that the replica has still to compute, of prompts and answers."""
    matched: int = 0
    """Tokens of the new prompt that the replica has cached."""
    num_open: int = 0
    """Requests at the replica, running and waiting."""
    parallel: int = 1
    """Maximum number of requests that run at the same time."""
    max_open: int = 1
    """Maximum number of requests, running and waiting; further ones are refused."""
    kv_usage: float = 0.0
    """Fraction of the KV pool that running requests hold, 0 … 1."""
    num_sent: int = 0
    """Requests ever sent to the replica."""
    rank: float = 0.0
    """Order among equals, before the number. Random where several processes route: else all would choose the same."""

    @property
    def pressure(self) -> int:
        """What happens to one more request: 0 = it begins at once, 1 = it waits in the queue, 2 = it is refused."""
        if self.num_open >= self.max_open:
            return 2
        return int(self.num_open >= self.parallel or self.kv_usage >= KV_FULL)


def choose(candidates: Iterable[Candidate], beginning: Beginning, *, companion: int | None = None) -> int | None:
    """The number of the replica for the request; None if there is no candidate.

    No request is routed to a replica where it has to wait while another has a free place, whatever is cached.

    Args:
        candidates: the replicas that can be asked, in any order.
        beginning: prefix keys and size of the prompt.
        companion: the replica of other requests of the same group, preferred while it has a free place.
    """

    def cost(candidate: Candidate) -> tuple[int, bool, int, int, float, int]:
        is_apart = candidate.number != companion or candidate.pressure > 0
        work = candidate.work + beginning.num_tokens - candidate.matched
        return candidate.pressure, is_apart, work, candidate.num_sent, candidate.rank, candidate.number

    best = min(candidates, key=cost, default=None)
    return None if best is None else best.number
