"""How much of layers with a window a pool keeps, and what fits into so many bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stoker.models.gguf import read_gguf
from stoker.models.memory_plan import MemoryNeeds, kv_bytes_per_token, memory_needs
from stoker.models.window_plan import WindowNeeds
from tests.unit.models.tiny_gguf import SHAPE, write_tiny_gguf

PLENTY = 1 << 40
WINDOWS = WindowNeeds(bytes_per_token=500, running_tokens=2000)
PER_TOKEN = 600


def cost(kv_tokens: int) -> int:
    kept = WINDOWS.tokens(kv_tokens) or kv_tokens
    return kv_tokens * (PER_TOKEN - WINDOWS.bytes_per_token) + kept * WINDOWS.bytes_per_token


@pytest.mark.parametrize("kv_tokens", [1, 2000, 3100])
def test_windows_of_a_small_pool_are_kept_whole(kv_tokens: int) -> None:
    assert WINDOWS.tokens(kv_tokens) == 0


@pytest.mark.parametrize("kv_tokens", [3300, 10_000, 1_000_000])
def test_a_large_pool_keeps_those_that_run_and_an_eighth(kv_tokens: int) -> None:
    assert WINDOWS.tokens(kv_tokens) == 2000 + kv_tokens // 8


@pytest.mark.parametrize("num_bytes", [0, 599, 600, 100_000, 1_900_000, 2_000_000, 3_000_000, 10**9])
def test_the_largest_pool_that_fits(num_bytes: int) -> None:
    found = WINDOWS.affordable(num_bytes, PER_TOKEN)
    assert cost(found) <= num_bytes
    assert cost(found + 8) > num_bytes or WINDOWS.tokens(found + 8) == 0


def test_ten_times_the_memory_holds_three_times_as_many_tokens_as_without_windows() -> None:
    num_bytes = 10**9
    assert WINDOWS.affordable(num_bytes, PER_TOKEN) > 3 * (num_bytes // PER_TOKEN)


def needs(tmp_path: Path, windows: WindowNeeds | None, **sizes: int) -> MemoryNeeds:
    gguf = read_gguf(write_tiny_gguf(tmp_path / "m.gguf", **SHAPE))
    asked = {"ctx_size": 4000, "kv_tokens": None, "parallel": 100} | sizes
    return memory_needs(gguf, **asked, windows=lambda context: windows if context > 100 else None)  # type: ignore[arg-type]


def test_a_plan_counts_what_layers_with_a_window_keep(tmp_path: Path) -> None:
    per_token = kv_bytes_per_token(read_gguf(write_tiny_gguf(tmp_path / "m.gguf", **SHAPE)))
    windows = WindowNeeds(bytes_per_token=per_token - 8, running_tokens=2000)
    wide = needs(tmp_path, windows)
    pool = replace(wide, pool_bytes=4000 * per_token)
    plan, whole = pool.within(PLENTY), replace(pool, windows=None).within(PLENTY)
    assert whole.kv_tokens == 4000
    assert plan.kv_tokens > 2 * whole.kv_tokens
    assert plan.window_tokens == windows.tokens(plan.kv_tokens) > 2000
    assert plan.kv_bytes <= pool.pool_bytes
    assert plan.kv_bytes == plan.kv_tokens * 8 + plan.window_tokens * windows.bytes_per_token
    assert f"{plan.kv_tokens} tokens of KV (layers with a window keep {plan.window_tokens})" in str(plan)


def test_a_short_context_is_kept_whole(tmp_path: Path) -> None:
    plan = needs(tmp_path, WINDOWS, ctx_size=100, kv_tokens=50_000).within(PLENTY)
    assert plan.window_tokens == 0
    assert "window" not in str(plan)
