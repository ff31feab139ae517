"""Compares the simulator with real replicas of known speed: each row of a step takes a set time, by the script.

    python benchmarks/cluster_check.py --replicas 1,2,4 --seconds 40

The same arrivals are sent to `stoker cluster serve` and to `cluster_sim.py`. Three runs before it measure what a step
takes by the number of its rows, and what a request costs: one request at a time, all places taken, and a crowd, whose
time is what a replica can do. Near its limit a replica that does a tenth less has a queue that is a third longer.
A prompt takes as many steps in the simulator as in the engine, whose steps have at most 256 tokens.
The medians should differ by less than 10 %, and the 95th percentiles by less than 20 %.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
from cluster_gates import served
from cluster_machines import Machine, Request
from cluster_sim import simulate

from stoker.backends.scripted import scripted_info
from stoker.runtime.routing import BLOCK_BYTES, BLOCK_TOKENS, TOKEN_BYTES, Beginning

_TOKEN_S = 0.01
_ANSWER_TOKENS = 16
_PARALLEL = 4
_STEMS = 10
_CROWD = 32
"""Requests for each replica in a crowd."""
_LOAD = 0.7
"""Of what the replicas can do."""
_ALONE = 10
_REST_BYTES = 64
"""What a prompt has after its last whole block, so that texts that share a few more bytes take as many steps."""
_CHUNK_TOKENS = scripted_info().max_batch_tokens // TOKEN_BYTES
"""Of prompts, in one step: a scripted token is a byte, and a `Beginning` counts several bytes as a token."""
_TEXT = "".join(chr(97 + number * number % 26) for number in range(200))


@dataclass(frozen=True, slots=True)
class Times:
    """What became of the requests, in seconds after they were sent."""

    first_token: list[float]
    end: list[float]

    def __str__(self) -> str:
        parts = [(name, sorted(values)) for name, values in (("first token", self.first_token), ("end", self.end))]
        return "   ".join(f"{name} p50 {of(v, 0.5):.3f} p95 {of(v, 0.95):.3f}" for name, v in parts)


def of(values: Sequence[float], part: float) -> float:
    """A quantile of sorted values."""
    return values[min(len(values) - 1, int(part * len(values)))]


def arrivals(replicas: int, seconds: float, seed: int) -> list[Request]:
    """Requests that begin with one of a few stems, at random moments."""
    drawn, found, now = random.Random(seed), list[Request](), 0.0
    rate = _LOAD * replicas / (_TOKEN_S * _ANSWER_TOKENS)
    while (now := now + drawn.expovariate(rate)) < seconds:
        stem = drawn.randrange(_STEMS)
        keys = (b"stem %d" % stem, b"request %d %d" % (seed, len(found)))
        found.append(Request(now, prompt_of(*keys), _ANSWER_TOKENS))
    return found


def prompt_of(*keys: bytes) -> Beginning:
    """A prompt with a block of text for each key."""
    return Beginning(keys, len(keys) * BLOCK_TOKENS + _REST_BYTES // TOKEN_BYTES + 1)


def text_of(request: Request) -> str:
    """A prompt whose blocks of text are as different as the keys."""
    return "".join(key.decode().ljust(BLOCK_BYTES, ".") for key in request.beginning.keys) + _REST_BYTES * "."


async def ask(client: httpx.AsyncClient, request: Request, begins: float) -> tuple[float, float]:
    """Sends a request at its time; returns when its first token and its end came, after that time."""
    await asyncio.sleep(begins + request.arrives_s - time.monotonic())
    sent, first = time.monotonic(), 0.0
    body = {"prompt": text_of(request), "max_tokens": request.answer_tokens, "ignore_eos": True, "stream": True}
    async with client.stream("POST", "/v1/completions", json=body) as reply:
        reply.raise_for_status()
        async for line in reply.aiter_lines():
            if line and not first:
                first = time.monotonic()
    return first - sent, time.monotonic() - sent


async def sent(url: str, requests: Sequence[Request]) -> Times:
    """All requests at their times."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False, limits=limits) as client:
        begins = time.monotonic()
        times = await asyncio.gather(*(ask(client, request, begins) for request in requests))
    return Times([first for first, _ in times], [end for _, end in times])


def calibration(replicas: int, at_once: int) -> list[Request]:
    """Groups of requests with long pauses between them."""
    pause_s = 0.25 * (min(at_once, _PARALLEL) + 1)
    starts = [number // at_once * pause_s for number in range(_ALONE * at_once)]
    keys = [b"%d of %d at once on %d" % (number, at_once, replicas) for number in range(len(starts))]
    return [Request(now, prompt_of(key), _ANSWER_TOKENS) for now, key in zip(starts, keys, strict=True)]


def step_of(times: Times) -> float:
    """What a step took, in seconds."""
    return (of(sorted(times.end), 0.5) - of(sorted(times.first_token), 0.5)) / (_ANSWER_TOKENS - 1)


def crowd(replicas: int) -> list[Request]:
    """Many requests at the same moment."""
    keys = [b"%d of a crowd on %d" % (number, replicas) for number in range(_CROWD * replicas)]
    return [Request(0.0, prompt_of(key), _ANSWER_TOKENS) for key in keys]


def machine_of(replicas: int, alone: Times, together: Times, crowded: Times) -> Machine:
    """A machine that takes as long as the replicas did."""
    step_s = step_of(alone)
    machine = Machine(
        parallel=_PARALLEL,
        step_s=step_s,
        step_per_answer_s=(step_of(together) - step_s) / (_PARALLEL - 1),
        prompt_tokens_per_s=1e9,
        chunk_tokens=_CHUNK_TOKENS,
    )
    wall_s = simulate(crowd(replicas), "stoker", num_replicas=replicas, num_fronts=1, machine=machine).wall_s
    way_s = of(sorted(alone.end), 0.5) - step_s * _ANSWER_TOKENS
    return replace(machine, request_s=max(0.0, (max(crowded.end) - way_s - wall_s) / _CROWD))


def simulated(requests: Sequence[Request], replicas: int, alone: Times, machine: Machine) -> Times:
    """What the simulator says, with what a request costs on its way."""
    simulate(requests, "stoker", num_replicas=replicas, num_fronts=1, machine=machine)
    first_s = of(sorted(alone.first_token), 0.5) - machine.step_s - machine.request_s
    end_s = of(sorted(alone.end), 0.5) - machine.step_s * _ANSWER_TOKENS - machine.request_s
    return Times(
        [request.first_token_s - request.arrives_s + first_s for request in requests],
        [request.done_s - request.arrives_s + end_s for request in requests],
    )


def compare(replicas: int, seconds: float) -> None:
    """Prints both, and by how much the simulator is off."""
    requests = arrivals(replicas, seconds, seed=replicas)
    with tempfile.TemporaryDirectory() as name:
        script = Path(name, "script.json")
        script.write_text(json.dumps([{"text": _TEXT, "token_ms": 1000 * _TOKEN_S}]))
        options = ("--script", str(script), "--parallel", str(_PARALLEL), "--max-draft", "0")
        with served(Path(name), ("cluster", "serve", *options), "scripted", replicas) as (url, _):
            alone = asyncio.run(sent(url, calibration(replicas, 1)))
            together = asyncio.run(sent(url, calibration(replicas, _PARALLEL * replicas)))
            crowded = asyncio.run(sent(url, crowd(replicas)))
            real = asyncio.run(sent(url, requests))
    machine = machine_of(replicas, alone, together, crowded)
    model = simulated(requests, replicas, alone, machine)
    print(f"{replicas} replicas, {len(requests)} requests")
    print(
        f"  a step of one row {step_of(alone):.4f} s, of {_PARALLEL} rows {step_of(together):.4f} s, "
        f"a request adds {machine.request_s:.4f} s"
    )
    print(f"  real       {real}\n  simulated  {model}")
    for name, ours, theirs in (("first token", model.first_token, real.first_token), ("end", model.end, real.end)):
        off = [of(sorted(ours), part) / of(sorted(theirs), part) - 1 for part in (0.5, 0.95)]
        print(f"  {name:12} p50 off by {off[0]:+.1%}, p95 by {off[1]:+.1%}")


def main() -> None:
    """Compares each number of replicas."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--replicas", default="1,2,4")
    parser.add_argument("--seconds", type=float, default=40.0)
    given = parser.parse_args()
    for replicas in map(int, given.replicas.split(",")):
        compare(replicas, given.seconds)


if __name__ == "__main__":
    main()
