"""Runs of blocks of KV that an engine holds, as they are told to others. What counts them is `block_ledger`.

A block is 32 entries. Its number stands for these and for all entries before them (`core.blocks`), so equal prompts
have equal numbers in every process.
"""

from __future__ import annotations

import msgspec

POOL, MEMORY = "pool", "memory"
"""Where a block can be held."""


class StoredBlocks(msgspec.Struct, frozen=True, array_like=True):
    """Blocks that an engine has come to hold. Those of the pool are consecutive; those in memory are in no order."""

    medium: str
    """`POOL` or `MEMORY`."""
    numbers: list[int]
    parent: int | None = None
    """Number of the block before the first one; None: there is none, or it is not said."""
    token_ids: list[int] = []
    """Entries of all blocks of the pool, if they were asked for; negative numbers stand for rows of images."""
    lora_id: int | None = None
    """Number of the set of adapters with which the blocks were computed; None = no adapters."""


class RemovedBlocks(msgspec.Struct, frozen=True, array_like=True):
    """Blocks that an engine holds no more in one place. It may still hold them in the other place."""

    medium: str
    """`POOL` or `MEMORY`."""
    numbers: list[int]


def block_number(key: bytes) -> int:
    """The number of a block, which is the first half of its key."""
    return int.from_bytes(key[:8], "big")
