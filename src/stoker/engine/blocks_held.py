"""Messages about the blocks of KV that an engine holds; `block_ledger` produces them.

A block has 32 entries. Its number is a hash of these, of all entries before them and of the LoRA adapters, see
`core.blocks`. Equal prompts with equal adapters thus have equal block numbers in every process.
"""

from __future__ import annotations

import msgspec

POOL, MEMORY = "pool", "memory"
"""Places that hold blocks: the KV pool, and the RAM tier."""


class StoredBlocks(msgspec.Struct, frozen=True, array_like=True):
    """Blocks that an engine now holds in one place. In the pool they are consecutive; in memory they have no order."""

    medium: str
    """`POOL` or `MEMORY`."""
    numbers: list[int]
    parent: int | None = None
    """Number of the block before the first one; None = there is none, or it is not reported."""
    token_ids: list[int] = []
    """Entries of the blocks, for blocks in the pool, if requested; negative numbers stand for rows of images."""
    lora_id: int | None = None
    """Number of the set of adapters with which the blocks were computed; None = no adapters."""


class RemovedBlocks(msgspec.Struct, frozen=True, array_like=True):
    """Blocks that an engine no longer holds in one place. The other place may still hold them."""

    medium: str
    """`POOL` or `MEMORY`."""
    numbers: list[int]


def block_number(key: bytes) -> int:
    """The number of a block, which is the first half of its key."""
    return int.from_bytes(key[:8], "big")
