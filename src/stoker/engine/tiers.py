"""Sets up the tiers that an engine's configuration asks for. It moves no KV, and knows no backend."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from stoker.cache.directory import KeptModel
from stoker.cache.fingerprint import WeightFile, fingerprint
from stoker.cache.place import BlockPlace, open_place
from stoker.cache.store import KVStore
from stoker.core.model_info import ModelInfo
from stoker.engine.config import EngineConfig
from stoker.errors import ConfigError
from stoker.models.cache import cache_dir

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

    Raises:
        ConfigError: the place of the persistent cache cannot be used with these settings.
    """
    has_disk = bool(config.kv_cache_dir)
    ram_mib = ram_tier_mib(config, available_bytes)
    if not info.traits.can_export or not (ram_mib or has_disk):
        return None
    store = KVStore(max(ram_mib, least_ram_mib(config)) * _MIB)
    if has_disk:
        place = open_place(config.kv_cache_dir)
        store.open_disk(
            place,
            identify=partial(fingerprint, weights, info.kv_format, place.notes(cache_dir())),
            model=KeptModel(name=config.name or config.model or info.name, kv_format=info.kv_format),
            limit_bytes=_disk_limit(config, place),
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


def _disk_limit(config: EngineConfig, place: BlockPlace) -> int:
    free_bytes = place.free_bytes()
    if config.cache_disk is None:
        return sys.maxsize if free_bytes is None else min(_MAX_DISK_MIB * _MIB, free_bytes // _DISK_SHARE)
    if free_bytes is None:
        message = "--cache-disk limits folders only. For an object store, configure an expiration rule of the bucket"
        raise ConfigError(message, key="cache_disk")
    return config.cache_disk * _MIB
