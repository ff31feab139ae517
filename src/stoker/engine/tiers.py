"""Sets up the tiers that an engine's configuration asks for. It moves no KV, and knows no backend."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from stoker.cache.directory import BlockDirectory, KeptModel
from stoker.cache.fingerprint import WeightFile, fingerprint
from stoker.cache.store import KVStore
from stoker.core.model_info import ModelInfo
from stoker.engine.config import EngineConfig

_MIB = 2**20
_MAX_RAM_MIB = 8192
_RAM_SHARE = 4
_STAGING_MIB = 256
"""What a disk needs in front of it, whatever else memory is for: blocks on their way."""
_READ_AHEAD_SHARE = 2
"""Of the tier in memory; the rest is for those who come."""
_MAX_READ_AHEAD_MIB = 1024
"""Some seconds of reading."""
_MAX_DISK_MIB = 10 * 1024
_DISK_SHARE = 2


def open_kv_store(
    config: EngineConfig, info: ModelInfo, weights: Sequence[WeightFile], available_bytes: int
) -> KVStore | None:
    """The tiers for a loaded model; None if there are to be none. The disk is opened later, by its own thread.

    Args:
        config: `cache_ram`, `kv_cache_dir` and `cache_disk`.
        info: of the backend.
        weights: what the disk's fingerprint is taken of.
        available_bytes: of memory, when the model is loaded.
    """
    has_disk = bool(config.kv_cache_dir)
    ram_mib = ram_tier_mib(config, available_bytes)
    if not info.traits.can_export or not (ram_mib or has_disk):
        return None
    store = KVStore(max(ram_mib, least_ram_mib(config)) * _MIB)
    if has_disk:
        directory = BlockDirectory(Path(config.kv_cache_dir).expanduser())
        store.open_disk(
            directory,
            identify=partial(fingerprint, weights, info.kv_format, directory.folder / "weights.json"),
            model=KeptModel(name=config.name or config.model or info.name, kv_format=info.kv_format),
            limit_bytes=_disk_limit(config, directory.folder),
            read_ahead_bytes=min(ram_mib // _READ_AHEAD_SHARE, _MAX_READ_AHEAD_MIB) * _MIB,
        )
    return store


def ram_tier_mib(config: EngineConfig, available_bytes: int) -> int:
    """What `cache_ram` means, given or not, in MiB."""
    if config.cache_ram is not None:
        return config.cache_ram
    return min(_MAX_RAM_MIB, available_bytes // _RAM_SHARE // _MIB)


def least_ram_mib(config: EngineConfig) -> int:
    """What the tiers have of memory in any case, in MiB: what is asked for, and what a disk needs."""
    return max(config.cache_ram or 0, _STAGING_MIB if config.kv_cache_dir else 0)


def _disk_limit(config: EngineConfig, folder: Path) -> int:
    if config.cache_disk is not None:
        return config.cache_disk * _MIB
    existing = next((path for path in (folder, *folder.parents) if os.path.exists(path)), folder)
    try:
        free_bytes = shutil.disk_usage(existing).free
    except OSError:  # the disk's thread will find out, and say so
        return _MAX_DISK_MIB * _MIB
    return min(_MAX_DISK_MIB * _MIB, free_bytes // _DISK_SHARE)
