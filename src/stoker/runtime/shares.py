"""What each of several engines of one model gets of the machine. It measures nothing and starts nothing.

What a user says is said of the model as a whole: one engine or eight, `--parallel 8` means eight requests at a time.
"""

from __future__ import annotations

import msgspec

from stoker.engine.config import EngineConfig
from stoker.errors import ConfigError


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
