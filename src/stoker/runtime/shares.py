"""What each of several engines, or models, gets of the machine. It measures nothing and starts nothing.

What a user says is said of the model as a whole: one engine or eight, `--parallel 8` means eight requests at a time.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from stoker.engine.config import EngineConfig
from stoker.errors import ConfigError
from stoker.models.memory_plan import MemoryNeeds

_MIB = 2**20


def share_of(config: EngineConfig, number: int, count: int, *, num_cores: int, ram_mib: int) -> EngineConfig:
    """The configuration of one of `count` engines; the shares together are what `config` says.

    Threads and places for requests are at least one each. The KV pools are equally large, because a request that fits
    into one must fit into any other.

    Args:
        config: of all of them together.
        number: of this one, from 0.
        count: how many there may ever be at the same time.
        num_cores: what `threads` means if it is not given.
        ram_mib: what `cache_ram` means, given or not.

    Raises:
        ConfigError: the KV pool would be smaller than the longest request that was asked for.
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
    """The needs of a model whose pools, those of its replicas together, are to take no more than its share of KV.

    Sizes without a configured value shrink as needed; the context never exceeds a replica's pool.

    Args:
        needs: as the model's files say, of each of `num_replicas`.
        config: what a user asked for.
        share_mib: one model's part of what all may take.

    Raises:
        ConfigError: what was asked for does not fit, or not even one token does.
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
