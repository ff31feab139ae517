"""Two real models of which one fits at a time: nobody fails, few swaps, and conversations outlive them."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import serving
from tests.waiting import BOUND_S, wait_until

pytestmark = pytest.mark.slow

NUM_WAITING = 8
TEXT = "The quick brown fox jumps over the lazy dog. " * 20


async def ask_both(url: str, names: list[str]) -> list[httpx.Response]:
    """So many requests for each, one for the one and one for the other."""
    async with httpx.AsyncClient(base_url=url, timeout=BOUND_S, trust_env=False) as client:
        bodies = [{"model": name, "prompt": f"{i},", "max_tokens": 8} for i in range(NUM_WAITING) for name in names]
        return await asyncio.gather(*(client.post("/v1/completions", json=body) for body in bodies))


def loads(url: str) -> dict[str, int]:
    found = re.findall(r'^stoker_model_loads_total{model="([^"]+)"} ([0-9.]+)$', metrics(url), re.MULTILINE)
    return {name: int(float(count)) for name, count in found}


def load(url: str, model: str) -> None:
    """Until it is there, with what lies on the disk: a request waits only so long for that, and then computes."""
    body = {"model": model, "wait": True}
    assert httpx.post(f"{url}/models/load", json=body, trust_env=False, timeout=BOUND_S).status_code == 200
    name = re.escape(f'stoker_kv_read_ahead_blocks_total{{model="{model}"}}')
    wait_until(lambda: complete(url, model, "?") and re.search(rf"^{name} [1-9]", metrics(url), re.MULTILINE))


def metrics(url: str) -> str:
    return httpx.get(f"{url}/metrics", trust_env=False, timeout=BOUND_S).text


def complete(url: str, model: str, prompt: str) -> dict[str, Any]:
    body: dict[str, Any] = {"model": model, "prompt": prompt, "max_tokens": 1}
    return httpx.post(f"{url}/v1/completions", json=body, trust_env=False, timeout=BOUND_S).json()


def cached_tokens(url: str, model: str) -> int:
    return complete(url, model, TEXT)["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_swap_with_requests_waiting_for_both(smollm2_path: Path, gemma3_path: Path, tmp_path: Path) -> None:
    assert smollm2_path.is_file()
    assert gemma3_path.is_file()
    names, log = ["smollm2", "gemma3"], tmp_path / "log"
    options = ["--models-max", "1", "--ctx-size", "512", "--cache-dir", str(tmp_path / "kv"), "--keep-alive", "10m"]
    options += ["--swap-after-s", str(BOUND_S)]
    with serving(*names, *options, log=log) as server:
        assert cached_tokens(server.url, "smollm2") == 0
        before = loads(server.url)
        replies = asyncio.run(ask_both(server.url, names))
        assert [reply.status_code for reply in replies] == [200] * 2 * NUM_WAITING
        assert [reply.json()["model"] for reply in replies] == names * NUM_WAITING
        num_swaps = sum(loads(server.url).values()) - sum(before.values())
        assert num_swaps <= 2
        load(server.url, "smollm2")
        assert cached_tokens(server.url, "smollm2") > 100, "what was computed outlived two swaps, on the disk"
    assert "loading smollm2: takes " in log.read_text()
