"""Divides the resources of a machine among the replicas of a model, and KV memory among models. It only computes.

Options describe the model as a whole: with one engine or eight, `--parallel 8` means eight requests at a time.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from stoker.engine.config import EngineConfig
from stoker.errors import ConfigError
from stoker.models.memory_plan import MemoryNeeds

_MIB = 2**20


def share_of(config: EngineConfig, number: int, count: int, *, num_cores: int, ram_mib: int) -> EngineConfig:
    """The configuration of one of `count` engines; the sum of all engines' resources is what `config` says.

    Threads and places for requests are at least one each. The KV pools are equally large, because a request that fits
    into one must fit into any other.

    Args:
        config: the configuration of the model as a whole.
        number: the engine's number, from 0.
        count: maximum number of engines at the same time.
        num_cores: number of threads if `threads` is not configured.
        ram_mib: the resolved value of `cache_ram` in MiB, configured or not.

    Raises:
        ConfigError: an engine's KV pool would be smaller than the configured context size.
    """
    assert 0 <= number < count

    def part(total: int) -> int:
        return total // count + (number < total % count)

    return msgspec.structs.replace(
        config,
        threads=max(1, part(config.threads or num_cores)),
        parallel=max(1, part(config.parallel)),
        max_queue=part(config.max_queue),
        max_queue_tokens=max(1, part(config.max_queue_tokens)),
        kv_tokens=None if config.kv_tokens is None else _pool(config, config.kv_tokens, count),
        cache_ram=part(ram_mib),
        num_replicas=count,
        has_siblings=count > 1,
        device_id=devices[number % len(devices)] if (devices := config.device_ids) else None,
    )


def _pool(config: EngineConfig, kv_tokens: int, count: int) -> int:
    wanted = config.ctx_size or 1
    if kv_tokens // count < wanted:
        raise ConfigError(
            f"--kv-tokens {kv_tokens} for {count} replicas is {kv_tokens // count} each, less than one request of "
            f"{wanted} tokens: use --kv-tokens {count * wanted}, or fewer replicas",
            key="kv_tokens",
        )
    return kv_tokens // count


def within_kv_share(needs: MemoryNeeds, config: EngineConfig, share_mib: int) -> MemoryNeeds:
    """The memory needs of a model whose KV pools, of all replicas together, must fit into its share of `--kv-budget`.

    Sizes without a configured value shrink as needed; the context never exceeds a replica's pool.

    Args:
        needs: of each of `num_replicas` replicas, from the model's files.
        config: the configured sizes.
        share_mib: the model's share of the KV budget, in MiB.

    Raises:
        ConfigError: the configured sizes do not fit into the share, or not even one token does.
    """
    if not needs.kv_bytes_per_token:
        return needs
    share = share_mib * _MIB
    tokens = needs.affordable_tokens(share // needs.num_replicas)
    asked = max(config.ctx_size or 1, (config.kv_tokens or 1) // needs.num_replicas)
    if asked > tokens:
        wanted_mib = -(-asked * needs.num_replicas * needs.kv_bytes_per_token // _MIB)
        raise ConfigError(
            f"--kv-budget: {needs.model} gets {share_mib} MiB of it, that is {tokens} tokens for each of "
            f"{needs.num_replicas} replicas, but {asked} are requested, which take {wanted_mib} MiB in total",
            key="kv_budget",
        )
    pool = None if needs.kv_tokens is None else min(needs.kv_tokens, tokens)
    return replace(needs, ctx_size=min(needs.ctx_size, tokens), kv_tokens=pool, pool_bytes=share)
