"""What HTTP costs: time between tokens through the server beside the same in process, and beside 256 idle streams.

    python benchmarks/http_overhead.py smollm2

Prints two ratios: through HTTP over in process (the aim is 1.05 at most), and with idle streams over without (1.00,
give or take what repeats of one measurement differ by). Measurements alternate; the least of each kind counts.
Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import httpx

from stoker import LLM, EngineConfig, SamplingParams

PROMPT = "Once upon a time there was a"
START_S, STOP_S = 300, 60
NUM_IDLE = 256
_EVENT = b"data: {"


def main() -> None:
    parser = argparse.ArgumentParser(description="What HTTP costs, see the head of this file")
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=128, help="of one answer")
    parser.add_argument("--repetitions", type=int, default=7)
    asyncio.run(compare(parser.parse_args()))


async def compare(asked: argparse.Namespace) -> None:
    in_process: list[float] = []
    through_http: list[float] = []
    beside_idle: list[float] = []
    async with serving(asked.model) as client:
        # In turn: whatever the machine does meanwhile, it does to all three.
        with LLM(asked.model, parallel=1) as llm:
            for _ in range(asked.repetitions):
                in_process.append(await asyncio.to_thread(token_s_in_process, llm, asked.tokens))
                through_http.append(await token_s_through_http(client, asked.tokens))
                beside_idle.append(await token_s_beside_idle(client, asked.tokens))
    report("in process", in_process)
    report("through HTTP", through_http)
    report(f"through HTTP, beside {NUM_IDLE} idle streams", beside_idle)
    print(f"through HTTP / in process: {min(through_http) / min(in_process):.3f}")
    print(f"beside {NUM_IDLE} idle streams / alone: {min(beside_idle) / min(through_http):.3f}")


def report(name: str, seconds: list[float]) -> None:
    least, most = min(seconds), max(seconds)
    print(f"{name}: {1e3 * least:.2f} ms between two tokens (least of {len(seconds)}; the most was {1e3 * most:.2f})")


def token_s_in_process(llm: LLM, num_tokens: int) -> float:
    stream = llm.stream(PROMPT, SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True))
    return mean_gap_s([time.perf_counter() for _ in stream])


async def token_s_through_http(client: httpx.AsyncClient, num_tokens: int) -> float:
    times: list[float] = []
    async with client.stream("POST", "/v1/completions", json=body(num_tokens)) as response:
        response.raise_for_status()
        await read_events(response, lambda: times.append(time.perf_counter()))
    return mean_gap_s(times)


async def token_s_beside_idle(client: httpx.AsyncClient, num_tokens: int) -> float:
    """The idle streams are open and wait in the queue: the server computes one request at a time."""
    times: list[float] = []
    async with AsyncExitStack() as open_streams:
        # Long enough to be still there when all others are open; what counts are its last tokens.
        asked = body(4 * num_tokens)
        measured = await open_streams.enter_async_context(client.stream("POST", "/v1/completions", json=asked))
        measured.raise_for_status()
        reading = asyncio.ensure_future(read_events(measured, lambda: times.append(time.perf_counter())))
        for _ in range(NUM_IDLE):
            idle = await open_streams.enter_async_context(client.stream("POST", "/v1/completions", json=body(1)))
            idle.raise_for_status()
        all_open = time.perf_counter()
        await reading
    counted = [at for at in times if at >= all_open]
    if len(counted) < num_tokens // 2:
        raise SystemExit("the measured stream ended before the idle ones were open: raise --tokens")
    return mean_gap_s(counted)


async def read_events(response: httpx.Response, on_event: Callable[[], None]) -> None:
    async for chunk in response.aiter_raw():
        for _ in range(chunk.count(_EVENT)):
            on_event()


def mean_gap_s(times: list[float]) -> float:
    return (times[-1] - times[0]) / (len(times) - 1)


def body(num_tokens: int) -> dict[str, object]:
    asked = {"prompt": PROMPT, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
    return {**asked, "stream": True, "seed": 1}


@asynccontextmanager
async def serving(model: str) -> AsyncGenerator[httpx.AsyncClient]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "stoker", "serve", model, "--port", str(port), "--parallel", "1"]
    queue = ["--max-queue", str(max(2 * NUM_IDLE, EngineConfig().max_queue))]
    process = subprocess.Popen(  # noqa: ASYNC220  # nothing else runs yet
        [*command, *queue], env={**os.environ, "STOKER_LOG_LEVEL": "warning"}
    )
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    try:
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", timeout=START_S, limits=limits, trust_env=False
        ) as client:
            await wait_until_ready(client, process)
            yield client
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_S)


async def wait_until_ready(client: httpx.AsyncClient, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if (await client.get("/health")).status_code == 200:
                return
        except httpx.TransportError:
            pass
        await asyncio.sleep(0.1)
    raise SystemExit("the server did not come up")


if __name__ == "__main__":
    main()
