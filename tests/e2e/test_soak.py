"""Sixty seconds of many impatient clients on a pool too small for them: nothing breaks, nothing is left over."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.conftest import Server, serving
from tests.waiting import wait_until

NUM_CLIENTS = 64
DURATION_S = 60
WAIT_S = 120
TOPICS = ["dogs", "the sea", "a long journey by train", "how bread is made", "the moon", "an old house", "rain"]
CONSTRAINED = {"prompt": "hi", "max_tokens": 4, "response_format": {"type": "json_object"}}
SYSTEM = "You are a patient storyteller who never hurries and who likes to describe small things. " * 4


async def one_request(client: httpx.AsyncClient, rng: random.Random, outcomes: Counter[str]) -> None:
    """A streamed answer that is read to its end, or left at any moment."""
    body: dict[str, Any] = {
        "messages": [
            {"role": "system", "content": SYSTEM if rng.random() < 0.7 else "Be brief."},
            {"role": "user", "content": f"Tell me about {rng.choice(TOPICS)}, part {rng.randrange(1000)}."},
        ],
        "max_tokens": rng.choice([4, 30, 120]),
        "seed": rng.randrange(1000),
        "stream": True,
    }
    patience = rng.choice([1, 3, 20, 10_000])
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code == 429:
            assert "retry-after" in response.headers
            outcomes["refused"] += 1
            return
        assert response.status_code == 200, await response.aread()
        lines = 0
        last = ""
        async for line in response.aiter_lines():
            last = line or last
            assert '"error"' not in line, line
            lines += 1
            if lines >= patience:
                outcomes["left"] += 1
                return
    assert last == "data: [DONE]", last
    outcomes["complete"] += 1


async def one_client(url: str, seed: int, until: float, outcomes: Counter[str]) -> None:
    rng = random.Random(seed)
    async with httpx.AsyncClient(base_url=url, timeout=WAIT_S, trust_env=False) as client:
        while time.monotonic() < until:
            try:
                await asyncio.wait_for(one_request(client, rng, outcomes), rng.choice([0.2, 2, WAIT_S]))
            except TimeoutError:
                outcomes["cancelled"] += 1


async def load(url: str, seconds: float, seed: int) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    until = time.monotonic() + seconds
    await asyncio.gather(*(one_client(url, seed + index, until, outcomes) for index in range(NUM_CLIENTS)))
    return outcomes


def own_bytes(pid: int) -> int:
    """Memory of the server and its engine without the mapped weights, which other tests may share or not."""
    process = psutil.Process(pid)
    status = [Path(f"/proc/{p.pid}/status").read_text() for p in [process, *process.children(recursive=True)]]
    return sum(int(text.split("RssAnon:")[1].split()[0]) * 1024 for text in status)


def num_handles(pid: int) -> int:
    process = psutil.Process(pid)
    return sum(p.num_fds() for p in [process, *process.children(recursive=True)])


def settled(server: Server) -> dict[str, Any]:
    """The model's health once nobody is served any more."""
    deadline, model = time.monotonic() + WAIT_S, dict[str, Any]()
    while time.monotonic() < deadline:
        (model,) = httpx.get(f"{server.url}/health", trust_env=False, timeout=WAIT_S).json()["models"]
        if model["num_running"] == model["num_waiting"] == 0:
            return model
        time.sleep(0.1)
    raise AssertionError(f"still busy: {json.dumps(model)}")


@pytest.mark.slow
def test_many_impatient_clients_on_a_small_pool(smollm2_path: Path, tmp_path: Path) -> None:
    sizes = ["--kv-tokens", "2048", "--ctx-size", "1024", "--parallel", "16", "--max-queue", "96"]
    sizes += ["--cache-ram", "16"]  # MiB: full before the memory is first read
    with serving(str(smollm2_path), *sizes, log=tmp_path / "log") as server:
        # A grammar, because an engine that is idle for some seconds starts the process that reads them.
        httpx.post(f"{server.url}/v1/completions", json=CONSTRAINED, trust_env=False, timeout=WAIT_S).raise_for_status()
        asyncio.run(load(server.url, DURATION_S / 4, seed=0))  # caches, pools and interned strings find their size
        settled(server)
        before, handles = own_bytes(server.pid), num_handles(server.pid)
        outcomes = asyncio.run(load(server.url, DURATION_S, seed=1000))
        model = settled(server)
        assert model["num_restarts"] == 0
        assert model["kv_used"] == 0
        assert model["kv_retained"] <= model["kv_capacity"] == 2048
        assert outcomes["complete"] > 0
        assert outcomes["left"] + outcomes["cancelled"] > 0
        wait_until(lambda: num_handles(server.pid) <= handles + 4)  # the last connections are closed a little later
        assert own_bytes(server.pid) - before < 24 * 2**20
