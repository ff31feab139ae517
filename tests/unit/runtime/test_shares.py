"""What each of several engines gets."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.engine.config import EngineConfig
from stoker.engine.supervisor import same_sizes
from stoker.errors import ConfigError, InvalidInput
from stoker.models.memory_plan import MemoryNeeds
from stoker.runtime.shares import share_of, within_kv_share
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
    assert set(values("has_siblings")) == {count > 1}
    assert set(values("model")) == {"m"}


def test_what_is_given_is_divided_and_what_is_not_is_left_to_the_plan():
    config = EngineConfig(threads=5, kv_tokens=1001, ctx_size=300, max_queue_tokens=10)
    first, second, third = shares(config, 3)
    assert [part.threads for part in (first, second, third)] == [2, 2, 1]
    assert [part.kv_tokens for part in (first, second, third)] == [333, 333, 333], "all must take the same requests"
    assert [part.max_queue_tokens for part in (first, second, third)] == [4, 3, 3]
    assert first.ctx_size == 300
    assert {part.kv_tokens for part in shares(EngineConfig(), 2)} == {None}


def test_replicas_take_the_devices_in_turn():
    assert [part.device_ids for part in shares(EngineConfig(device_id="3,5"), 3)] == [(3,), (5,), (3,)]
    assert [part.device_ids for part in shares(EngineConfig(device_id=2), 2)] == [(2,), (2,)]
    assert {part.device_id for part in shares(EngineConfig(), 2)} == {None}
    wrongs: list[Any] = ["", "1,", "1,x", "1024", -1, 1.5]
    for wrong in wrongs:
        with pytest.raises(InvalidInput, match="device_id"):
            EngineConfig(device_id=wrong)


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


def kv_needs(**more: Any) -> MemoryNeeds:
    sizes: dict[str, Any] = {"ctx_size": 8192, "kv_tokens": None, "parallel": 8, "num_replicas": 1}
    return MemoryNeeds(
        model="m", spare_kv_tokens=64, weights_bytes=10, kv_bytes_per_token=1024, compute_bytes=10, **(sizes | more)
    )


@given(
    share_mib=st.integers(1, 4096),
    num_replicas=st.integers(1, 8),
    ctx_size=st.integers(1, 2**17),
    hinted=st.none() | st.integers(1, 2**20),
    free=st.integers(1 << 20, 1 << 40),
)
def test_pools_of_all_replicas_fit_into_the_share(
    share_mib: int, num_replicas: int, ctx_size: int, hinted: int | None, free: int
) -> None:
    """S1-2: a cap for each replica, so that the budget is divided fairly."""
    needs = kv_needs(ctx_size=ctx_size, num_replicas=num_replicas, kv_tokens=hinted)
    found = within_kv_share(needs, EngineConfig(num_replicas=num_replicas), share_mib)
    plan = found.within(max(free, found.least_bytes))
    assert 1 <= plan.kv_tokens * plan.kv_bytes_per_token * num_replicas <= share_mib << 20
    assert 1 <= plan.ctx_size <= (share_mib << 20) // num_replicas // 1024


def test_a_large_share_is_used():
    found = within_kv_share(kv_needs(ctx_size=2**18), EngineConfig(), 2048).within(1 << 40)
    assert found.kv_tokens == 2 << 20


def test_what_does_not_fit_into_a_share_is_refused_with_numbers():
    needs = kv_needs(ctx_size=3000, num_replicas=2)
    with pytest.raises(
        ConfigError, match=r"m gets 2 MiB of it, that is 1024 tokens .* 3000 are requested.* 6 MiB in total"
    ):
        within_kv_share(needs, EngineConfig(ctx_size=3000), 2)
    with pytest.raises(ConfigError, match="2500 are requested"):
        within_kv_share(needs, EngineConfig(kv_tokens=5000), 2)
    assert within_kv_share(needs, EngineConfig(), 2).ctx_size == 1024
