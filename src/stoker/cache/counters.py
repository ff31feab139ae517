"""Counters of the cache tiers (RAM and disk): their work and their content. It exports no metric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from stoker.core.histogram import Gauge


@dataclass(frozen=True, slots=True, kw_only=True)
class TierCounters:
    """Totals since the start, except for the fields marked as gauges: blocks and bytes of RAM and disk.

    A block is the unit that is kept and restored: KV of 32 tokens, or the whole state of a recurrent model.
    """

    ram_blocks: Annotated[int, Gauge.SUM] = 0
    ram_bytes: Annotated[int, Gauge.SUM] = 0
    ram_limit_bytes: Annotated[int, Gauge.SUM] = 0
    ram_hit_blocks: int = 0
    """Blocks restored from memory."""
    ram_hit_tokens: int = 0
    ram_evicted_blocks: int = 0
    disk_blocks: Annotated[int, Gauge.LARGEST] = 0
    """Blocks of this model on disk, as far as this process knows of them."""
    disk_bytes: Annotated[int, Gauge.LARGEST] = 0
    disk_limit_bytes: Annotated[int, Gauge.LARGEST] = 0
    disk_hit_blocks: int = 0
    """Blocks restored after they were read from disk."""
    disk_hit_tokens: int = 0
    disk_evicted_blocks: int = 0
    disk_read_bytes: int = 0
    disk_read_s: float = 0.0
    disk_read_ahead_blocks: int = 0
    """Blocks that were read ahead after the start, before a request needed them."""
    disk_written_bytes: int = 0
    disk_write_s: float = 0.0
    disk_failed_writes: int = 0
    disk_bad_files: int = 0
    lost_blocks: int = 0
    """Blocks that were evicted from RAM before they were written to disk."""
    exported_tokens: int = 0
    export_s: float = 0.0
    failed_exports: int = 0
    restored_tokens: int = 0
    restore_s: float = 0.0
    failed_restores: int = 0


@dataclass(slots=True)
class DiskCounters:
    """Totals since the start, as `disk_…` in `TierCounters`. Written by the disk thread only."""

    evicted_blocks: int = 0
    read_bytes: int = 0
    read_s: float = 0.0
    read_ahead_blocks: int = 0
    written_bytes: int = 0
    write_s: float = 0.0
    failed_writes: int = 0
    bad_files: int = 0
