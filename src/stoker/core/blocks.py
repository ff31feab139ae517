"""Keys of KV blocks: hashes of entries under which exported KV is found again. It stores nothing.

```
    entries   [ 0 ……… 31 | 32 ……… 63 | 64 … 70 ]
    keys        k0 ────────► k1 ─────────► (no whole block yet)
              = H(root, 0…31)  = H(k0, 32…63)
```

A key stands for its block and everything before it, because KV depends on both. Two sequences with a common prefix have
the same keys for its blocks. The chain of block hashes is vLLM's (automatic prefix caching).
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from stoker.core.batch import AdapterSet, Entry

BLOCK_ENTRIES = 32
"""Number of entries in a block, the unit in which KV is kept and restored."""
_KEY_BYTES = 16


class Chain:
    """The keys of one sequence of entries, computed on demand.

    Args:
        root: hash of everything that the KV depends on besides the entries, see `root_key`.
    """

    __slots__ = ("entries", "keys", "marks", "num_kept", "root", "wanted")

    def __init__(self, root: bytes) -> None:
        self.root = root
        self.keys: list[bytes] = []
        """One key per whole block, in order."""
        self.num_kept = 0
        """Number of leading blocks that need no further export."""
        self.entries: list[Entry] = []
        """The prompt's entries. Their keys are only computed if the tiers hold everything before them."""
        self.marks: dict[int, bytes] = {}
        """Extra lengths (not multiples of a block) at which exported KV may be found, with their keys."""
        self.wanted: set[int] = set()
        """The lengths in `marks` at which KV has to be exported."""

    def extend(self, entries: Sequence[Entry]) -> None:
        """Adds the keys of whole blocks. `entries` are those of earlier calls and any number of further ones."""
        for start in range(len(self.keys) * BLOCK_ENTRIES, len(entries) - BLOCK_ENTRIES + 1, BLOCK_ENTRIES):
            before = self.keys[-1] if self.keys else self.root
            self.keys.append(_digest(before, entries[start : start + BLOCK_ENTRIES]))

    def key_at(self, entries: Sequence[Entry], length: int) -> bytes:
        """The key of the first `length` ≥ 1 entries; no block need end there."""
        assert 0 < length <= len(entries)
        self.extend(entries)
        num_whole, rest = divmod(length, BLOCK_ENTRIES)
        before = self.keys[num_whole - 1] if num_whole else self.root
        return _digest(before, entries[length - rest : length]) if rest else before

    def state_key_at(self, entries: Sequence[Entry], length: int) -> bytes:
        """The key of the recurrent state after the first `length` entries (with the part of a block before it)."""
        return _digest(self.key_at(entries, length), ["state"])


def root_key(adapters: AdapterSet) -> bytes:
    """The root of all chains of KV computed with these adapters; different sets or scales never share keys."""
    return _digest(b"", [f"{name}={scale!r}" for name, scale in adapters])


def _digest(before: bytes, entries: Sequence[object]) -> bytes:
    return blake2b(before + repr(tuple(entries)).encode(), digest_size=_KEY_BYTES).digest()
