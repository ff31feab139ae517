"""What each of several engines gets."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.engine.config import EngineConfig
from stoker.engine.supervisor import same_sizes
from stoker.errors import ConfigError
from stoker.runtime.shares import share_of
from tests.unit.runtime.fake_replica import CARD


def shares(config: EngineConfig, count: int, num_cores: int = 8, ram_mib: int = 1000) -> list[EngineConfig]:
    return [share_of(config, number, count, num_cores=num_cores, ram_mib=ram_mib) for number in range(count)]


@given(
    count=st.integers(1, 9),
    num_cores=st.integers(1, 64),
    ram_mib=st.integers(0, 5000),
    parallel=st.integers(1, 64),
    max_queue=st.integers(0, 300),
)
def test_the_parts_are_the_whole_and_fair(
    count: int, num_cores: int, ram_mib: int, parallel: int, max_queue: int
) -> None:
    config = EngineConfig(model="m", parallel=parallel, max_queue=max_queue)
    parts = shares(config, count, num_cores, ram_mib)

    def values(name: str) -> list[Any]:
        return [getattr(part, name) for part in parts]

    wholes = {"threads": num_cores, "cache_ram": ram_mib, "parallel": parallel, "max_queue": max_queue}
    for name, whole in wholes.items():
        assert max(values(name)) - min(values(name)) <= 1
        needs_one = name in ("threads", "parallel") and whole < count
        assert sum(values(name)) == (count if needs_one else whole), name
    assert set(values("num_replicas")) == {count}
    assert set(values("model")) == {"m"}


def test_what_is_given_is_divided_and_what_is_not_is_left_to_the_plan():
    config = EngineConfig(threads=5, kv_tokens=1001, ctx_size=300, max_queue_tokens=10)
    first, second, third = shares(config, 3)
    assert [part.threads for part in (first, second, third)] == [2, 2, 1]
    assert [part.kv_tokens for part in (first, second, third)] == [333, 333, 333], "all must take the same requests"
    assert [part.max_queue_tokens for part in (first, second, third)] == [4, 3, 3]
    assert first.ctx_size == 300
    assert {part.kv_tokens for part in shares(EngineConfig(), 2)} == {None}


def test_a_pool_that_holds_no_request_is_refused():
    with pytest.raises(ConfigError, match="use --kv-tokens 1500, or fewer replicas"):
        shares(EngineConfig(kv_tokens=1000, ctx_size=500), 3)
    with pytest.raises(ConfigError):
        shares(EngineConfig(kv_tokens=2), 3)


def test_later_engines_become_what_the_first_one_is():
    config = same_sizes(EngineConfig(model="m", num_replicas=4, threads=3), CARD)
    assert (config.ctx_size, config.kv_tokens, config.num_replicas) == (CARD.context_size, CARD.kv_tokens, 1)
    assert (config.model, config.threads) == ("m", 3)
    encoder = same_sizes(EngineConfig(), msgspec.structs.replace(CARD, kv_tokens=0))
    assert encoder.kv_tokens is None
