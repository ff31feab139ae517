"""Clients that ask in every dialect and leave at every moment, by the ten thousand, on a real model.

`python -m tests.e2e.abort_soak --requests 16000` prints, after every tenth of them, what the server's processes hold:
memory of their own, handles, threads, slots. It fails if any of it grew after the first tenths. The pool is small and
full before it is first looked at, so that memory which is only touched for the first time does not count.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.e2e.conftest import Server, serving

OPTIONS = ["--kv-tokens", "2048", "--ctx-size", "1024", "--parallel", "8", "--max-queue", "32", "--cache-ram", "0"]
NUM_CLIENTS = 24
"""More than run at the same time: many leave the queue."""
SETTLE_S = 120
BOUND_S = 120
MAX_GROWTH_BYTES = 12 * 2**20
MAX_NEW_HANDLES = 4
DIALECTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "TEXT"}]},
    "/v1/completions": {"prompt": "TEXT", "n": 2},
    "/v1/responses": {"input": "TEXT"},
    "/v1/messages": {"messages": [{"role": "user", "content": "TEXT"}], "max_tokens": 200},
    "/api/generate": {"prompt": "TEXT"},
    "/api/chat": {"messages": [{"role": "user", "content": "TEXT"}]},
    "/completion": {"prompt": "TEXT"},
    "/v1/embeddings": {"input": ["TEXT"] * 3},
}
MOMENTS = ("half of the request", "all of it", "a moment later", "in the stream")


@dataclass(frozen=True)
class Holding:
    """What the server and its engine hold."""

    server_bytes: int
    engine_bytes: int
    num_handles: int
    num_threads: int
    kv_used: int
    num_open: int
    num_connections: int

    @classmethod
    def of(cls, server: Server) -> Holding:
        model = _health(server)
        process = psutil.Process(server.pid)
        children = process.children(recursive=True)
        return cls(
            server_bytes=_own_bytes(server.pid),
            engine_bytes=sum(_own_bytes(child.pid) for child in children),
            num_handles=sum(p.num_fds() for p in [process, *children]),
            num_threads=sum(p.num_threads() for p in [process, *children]),
            kv_used=model["kv_used"],
            num_open=model["num_running"] + model["num_waiting"],
            num_connections=sum(c.status != psutil.CONN_LISTEN for c in process.net_connections("tcp")),
        )


def _own_bytes(pid: int) -> int:
    """Without the mapped weights, which come and go as the system likes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


def _health(server: Server) -> dict[str, Any]:
    (model,) = httpx.get(f"{server.url}/health", trust_env=False, timeout=BOUND_S).json()["models"]
    return model


async def _open_and_leave(port: int, rng: random.Random, moments: Counter[str]) -> None:
    path, moment = rng.choice(list(DIALECTS)), rng.choice(MOMENTS)
    moments[moment] += 1
    text = f"{rng.randrange(10**9)} " + "and many words " * rng.choice([1, 20, 200])
    body = {**DIALECTS[path], "stream": moment == "in the stream" or rng.random() < 0.5}
    content = json.dumps(body).replace("TEXT", text).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    request = head.encode() + f"Content-Length: {len(content)}\r\n\r\n".encode() + content
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request[:-20] if moment == MOMENTS[0] else request)
        if moment == "a moment later":
            await asyncio.sleep(rng.choice([0.001, 0.01, 0.05]))
        elif moment == "in the stream":
            with suppress(TimeoutError):  # it waits in the queue; that is where it leaves
                await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), rng.choice([0.05, 0.2]))
        with suppress(ConnectionError):
            await writer.drain()
    finally:
        if rng.random() < 0.5:
            writer.transport.abort()
        else:
            writer.close()


async def _leave_often(server: Server, count: int, seed: int) -> Counter[str]:
    port, moments = int(server.url.rpartition(":")[2]), Counter[str]()
    numbers = iter(range(count))

    async def client(number: int) -> None:
        rng = random.Random(f"{seed}-{number}")
        async with httpx.AsyncClient(base_url=server.url, timeout=BOUND_S, trust_env=False) as other:
            for _ in numbers:
                await _open_and_leave(port, rng, moments)
                await other.get("/health")  # else thousands would wait to be accepted, and leave there

    async with asyncio.TaskGroup() as group:
        for number in range(NUM_CLIENTS):
            group.create_task(client(number))
    return moments


async def _fill(server: Server) -> None:
    """Whole answers, until every cell of the pool has been written and every way through the server been taken."""
    async with httpx.AsyncClient(base_url=server.url, timeout=BOUND_S, trust_env=False) as client:
        for number in range(2):
            for path, body in DIALECTS.items():
                content = json.dumps({**body, "stream": number == 0, "max_tokens": 8})
                text = f"{path} {number} " + "and many words " * 250
                replies = [client.post(path, content=content.replace("TEXT", text)) for _ in range(4)]
                assert {reply.status_code for reply in await asyncio.gather(*replies)} == {200}


async def _settled(server: Server) -> Holding:
    async with asyncio.timeout(SETTLE_S):
        # Those that left are heard one after the other, perhaps after the answer that nobody is served.
        while (now := Holding.of(server)).num_open or now.kv_used or now.num_connections:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    return now


def abort_soak(model: str, num_requests: int, *, num_parts: int, seed: int = 0) -> tuple[Counter[str], list[Holding]]:
    """How many left when, and what the server held before all, and after each part of them.

    Args:
        model: what is served.
        num_requests: in all.
        num_parts: after each of which is measured.
        seed: another one, another order of events.
    """
    moments = Counter[str]()
    with tempfile.TemporaryDirectory() as folder, serving(model, *OPTIONS, log=Path(folder) / "log") as server:
        asyncio.run(_fill(server))
        holdings = [asyncio.run(_settled(server))]
        for part in range(num_parts):
            moments += asyncio.run(_leave_often(server, num_requests // num_parts, seed + part))
            holdings.append(asyncio.run(_settled(server)))
            print(f"{sum(moments.values()):6} {holdings[-1]}", flush=True)
        assert _health(server)["num_restarts"] == 0
    return moments, holdings


def check(moments: Counter[str], holdings: Sequence[Holding]) -> None:
    """Raises AssertionError if nobody came at some moment, or if something grew after the first fifth."""
    assert moments.keys() == set(MOMENTS), moments
    early, last = holdings[-1 - (4 * (len(holdings) - 1)) // 5], holdings[-1]
    assert last.num_handles <= early.num_handles + MAX_NEW_HANDLES, holdings
    assert last.num_threads <= early.num_threads + MAX_NEW_HANDLES, holdings
    assert last.server_bytes <= early.server_bytes + MAX_GROWTH_BYTES, holdings
    assert last.engine_bytes <= early.engine_bytes + MAX_GROWTH_BYTES, holdings


def main() -> int:
    parser = argparse.ArgumentParser(description="Open requests in every dialect, and leave them.")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--requests", type=int, default=16_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    moments, holdings = abort_soak(options.model, options.requests, num_parts=10, seed=options.seed)
    for name, count in sorted(moments.items()):
        print(f"{name:20} {count}")
    check(moments, holdings)
    return 0


if __name__ == "__main__":
    sys.exit(main())
