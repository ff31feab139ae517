"""Sets up the KV tiers (RAM and disk) that an engine's configuration asks for. It moves no KV."""

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
"""RAM that a disk tier needs in any case, in MiB, for blocks on their way to and from the disk."""
_READ_AHEAD_SHARE = 2
"""Divisor: read-ahead from disk uses a half of the RAM tier at most, and leaves the rest to requests."""
_MAX_READ_AHEAD_MIB = 1024
"""Maximum read-ahead from disk, in MiB: some seconds of reading."""
_MAX_DISK_MIB = 10 * 1024
_DISK_SHARE = 2


def open_kv_store(
    config: EngineConfig, info: ModelInfo, weights: Sequence[WeightFile], available_bytes: int
) -> KVStore | None:
    """The tiers for a loaded model; None = none is wanted, or KV cannot be exported. A thread opens the disk later.

    Args:
        config: `cache_ram`, `kv_cache_dir` and `cache_disk` are used.
        info: properties of the backend.
        weights: the files whose fingerprint identifies the model on disk.
        available_bytes: free memory when the model is loaded.

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
    """Size of the RAM tier in MiB: `cache_ram`, or its default."""
    if config.cache_ram is not None:
        return config.cache_ram
    return min(_MAX_RAM_MIB, available_bytes // _RAM_SHARE // _MIB)


def least_ram_mib(config: EngineConfig) -> int:
    """RAM that the tiers use in any case, in MiB: `cache_ram` if given, and at least what a disk tier needs."""
    return max(config.cache_ram or 0, _STAGING_MIB if config.kv_cache_dir else 0)


def _disk_limit(config: EngineConfig, place: BlockPlace) -> int:
    free_bytes = place.free_bytes()
    if config.cache_disk is None:
        return sys.maxsize if free_bytes is None else min(_MAX_DISK_MIB * _MIB, free_bytes // _DISK_SHARE)
    if free_bytes is None:
        message = "--cache-disk limits folders only. For an object store, configure an expiration rule of the bucket"
        raise ConfigError(message, key="cache_disk")
    return config.cache_disk * _MIB
