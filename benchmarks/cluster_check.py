"""Compares the simulator with real replicas of known speed: each token of a step takes a set time, by the script.

    python benchmarks/cluster_check.py --replicas 1,2,4

The same requests are sent to `stoker cluster serve` and to `cluster_sim.py`, at random moments and, as a crowd, all at
once. A step of a replica is a wait, and its computation is a part of the wait. So replicas do not compete for the
processors of the machine unless these are busy. Measured before is how much longer a step takes than the script says,
and what a request takes on its way, with one request at a time at each replica. With several replicas, a request that
goes to another one changes all that follow, so the figures of a short run differ from run to run by a tenth.

The medians of the times, the part of the prompts that is found in caches, and the crowd's tokens per second may differ
by 10 %, and the 95th percentiles of the times by 20 %. Otherwise the exit status is 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from cluster_gates import served
from cluster_machines import Machine, Request
from cluster_sim import simulate

from stoker.backends.scripted import scripted_info
from stoker.runtime.routing import BLOCK_BYTES, BLOCK_TOKENS, TOKEN_BYTES, Beginning

_TOKEN_S = 0.02
_PROMPT_TOKEN_S = 0.0001
"""Of one byte, which is a scripted token. A step's prompt tokens take less time than the engine allows for them beside
an answer, so that it computes as many in every step."""
_ANSWER_TOKENS, _LONG_ANSWER = 16, 48
_PARALLEL = 8
_TURNS, _FIRST_BLOCKS = 4, 3
"""Requests of a conversation, and blocks of its first prompt; each further prompt has one more."""
_PAUSE_S = (2.0, 6.0)
"""Time between two requests of a conversation. The engine keeps what was computed for longer, see `usual_slots`."""
_CROWD = 24
"""Requests for each replica in a crowd."""
_LOAD = 0.6
"""Of what the replicas can do."""
_GROUPS = 12
_REST_BYTES = 64
"""What a prompt has after its last whole block, so that texts that share a few more bytes take as many steps."""
_CHUNK_TOKENS = scripted_info().max_batch_tokens // TOKEN_BYTES
"""Of prompts, in one step: a scripted token is a byte, and a `Beginning` counts several bytes as a token."""
_TEXT = "".join(chr(97 + number * number % 26) for number in range(200))
_MEDIAN, _TAIL = 0.5, 0.95
LIMITS: Mapping[float, float] = {_MEDIAN: 0.10, _TAIL: 0.20}
"""By how much quantiles of times may differ."""
LIMIT = 0.10
"""By how much the cached part and the crowd's tokens per second may differ."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of requests."""

    first_token_s: Sequence[float]
    """From sending a request to its first token."""
    end_s: Sequence[float]
    cached_part: float
    """Of all prompt tokens."""
    tokens_per_s: float
    """Tokens of answers, from the first request to the end of the last answer."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of the simulator and of the replicas."""

    name: str
    simulated: float
    real: float
    limit: float

    @property
    def relative(self) -> float:
        return self.simulated / self.real - 1

    @property
    def is_small(self) -> bool:
        return abs(self.relative) <= self.limit

    def __str__(self) -> str:
        verdict = "" if self.is_small else f"   more than {self.limit:.0%}"
        return (
            f"{self.name:18} simulated {self.simulated:8.3f}   real {self.real:8.3f}   {self.relative:+6.1%}{verdict}"
        )


def of(values: Sequence[float], part: float) -> float:
    """A quantile."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def arrivals(replicas: int, seconds: float, seed: int) -> list[Request]:
    """The requests of conversations that begin at random moments; each repeats the prompt before and adds a block."""
    drawn, found, begins = random.Random(seed), list[Request](), 0.0
    own_blocks = (_FIRST_BLOCKS + _TURNS - 1) / _TURNS
    request_s = _TOKEN_S * _ANSWER_TOKENS + _PROMPT_TOKEN_S * (own_blocks * BLOCK_BYTES + _REST_BYTES)
    rate = _LOAD * replicas / request_s / _TURNS
    while (begins := begins + drawn.expovariate(rate)) < seconds:
        keys, now = _new("chat", len(found)), begins
        for turn in range(_TURNS):
            found.append(Request(now, prompt_of(*keys[: _FIRST_BLOCKS + turn]), _ANSWER_TOKENS))
            now += drawn.uniform(*_PAUSE_S)
    return sorted(found, key=lambda request: request.arrives_s)


def crowd(replicas: int) -> list[Request]:
    """Many requests at the same moment, which have nothing in common."""
    prompts = [prompt_of(*_new("crowd", number)[:_FIRST_BLOCKS]) for number in range(_CROWD * replicas)]
    return [Request(0.0, prompt, _ANSWER_TOKENS) for prompt in prompts]


def calibration(replicas: int) -> list[Request]:
    """One request for each replica at a time, with pauses, and nothing in common."""
    pause_s = 0.25 + _TOKEN_S * _ANSWER_TOKENS
    prompts = [prompt_of(*_new("alone", number)[:_FIRST_BLOCKS]) for number in range(_GROUPS * replicas)]
    return [Request(number // replicas * pause_s, prompt, _ANSWER_TOKENS) for number, prompt in enumerate(prompts)]


def full(replicas: int) -> list[Request]:
    """Long answers at all places of all replicas at once, to prompts of `calibration`, which are cached by now."""
    prompts = [request.beginning for request in calibration(replicas)]
    return [Request(0.0, prompt, _LONG_ANSWER) for prompt in prompts[: _PARALLEL * replicas]]


def _new(kind: str, number: int) -> list[bytes]:
    """The keys of a conversation."""
    return [f"{number} {kind} {block}".encode() for block in range(_FIRST_BLOCKS + _TURNS - 1)]


def prompt_of(*keys: bytes) -> Beginning:
    """A prompt with a block of text for each key."""
    return Beginning(keys, len(keys) * BLOCK_TOKENS + _REST_BYTES // TOKEN_BYTES + 1)


def text_of(request: Request) -> str:
    """A prompt whose blocks of text are as different as the keys."""
    return "".join(key.decode().ljust(BLOCK_BYTES, ".") for key in request.beginning.keys) + _REST_BYTES * "."


@dataclass(frozen=True, slots=True)
class _Reply:
    """One answer of a server, in seconds after it was asked."""

    first_token_s: float
    end_s: float
    num_prompt: int
    num_cached: int


async def ask(client: httpx.AsyncClient, request: Request, begins: float) -> _Reply:
    """Sends a request at its time."""
    await asyncio.sleep(begins + request.arrives_s - time.monotonic())
    sent, first, usage = time.monotonic(), 0.0, ""
    body: dict[str, object] = {
        "prompt": text_of(request),
        "max_tokens": request.answer_tokens,
        "ignore_eos": True,
        "stream": True,
    }
    body |= {"stream_options": {"include_usage": True}}
    async with client.stream("POST", "/v1/completions", json=body) as reply:
        reply.raise_for_status()
        async for line in reply.aiter_lines():
            first = first or (time.monotonic() if line else 0.0)
            usage = line if '"cached_tokens"' in line else usage
    said = json.loads(usage.removeprefix("data: "))["usage"]
    num_cached = said["prompt_tokens_details"]["cached_tokens"]
    return _Reply(first - sent, time.monotonic() - sent, said["prompt_tokens"], num_cached)


async def sent(url: str, requests: Sequence[Request]) -> Outcome:
    """Sends all requests at their times."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False, limits=limits) as client:
        begins = time.monotonic() + 0.1
        replies = await asyncio.gather(*(ask(client, request, begins) for request in requests))
    wall_s = max(request.arrives_s + reply.end_s for request, reply in zip(requests, replies, strict=True))
    return Outcome(
        [reply.first_token_s for reply in replies],
        [reply.end_s for reply in replies],
        sum(reply.num_cached for reply in replies) / sum(reply.num_prompt for reply in replies),
        sum(request.answer_tokens for request in requests) / wall_s,
    )


def step_of(found: Outcome, num_tokens: int) -> float:
    """How long the steps of answers took, in seconds."""
    return (of(found.end_s, _MEDIAN) - of(found.first_token_s, _MEDIAN)) / (num_tokens - 1)


def machine_of(alone: Outcome, together: Outcome) -> Machine:
    """A machine whose steps take as long as those of the replicas: of one answer, and with all places taken."""
    step_s = step_of(alone, _ANSWER_TOKENS)
    return Machine(
        parallel=_PARALLEL,
        step_s=step_s,
        step_per_answer_s=(step_of(together, _LONG_ANSWER) - step_s) / (_PARALLEL - 1),
        prompt_tokens_per_s=1 / (_PROMPT_TOKEN_S * TOKEN_BYTES),
        chunk_tokens=_CHUNK_TOKENS,
        cache_tokens=1_000_000,
    )


@dataclass(frozen=True, slots=True)
class Way:
    """What a request takes besides the steps of its replica, in seconds."""

    to_first_token_s: float = 0.0
    to_end_s: float = 0.0


def simulated(requests: Sequence[Request], replicas: int, machine: Machine, way: Way | None = None) -> Outcome:
    """What the simulator says."""
    way = way or Way()
    found = simulate(requests, "stoker", num_replicas=replicas, num_fronts=1, machine=machine)
    return Outcome(
        [request.first_token_s - request.arrives_s + way.to_first_token_s for request in requests],
        [request.done_s - request.arrives_s + way.to_end_s for request in requests],
        found.cached_part,
        found.answer_tokens / (found.wall_s + way.to_end_s),
    )


def way_of(alone: Outcome, replicas: int, machine: Machine) -> Way:
    """What requests that were alone took besides steps."""
    model = simulated(calibration(replicas), replicas, machine)
    first_s = of(alone.first_token_s, _MEDIAN) - of(model.first_token_s, _MEDIAN)
    return Way(first_s, of(alone.end_s, _MEDIAN) - of(model.end_s, _MEDIAN))


def differences(model: Outcome, real: Outcome, crowds: tuple[Outcome, Outcome]) -> list[Difference]:
    """All that is compared. `crowds` are the simulated one and the real one."""
    found = [
        Difference(f"{name} p{100 * part:.0f}, s", of(ours, part), of(theirs, part), limit)
        for name, ours, theirs in (
            ("first token", model.first_token_s, real.first_token_s),
            ("end", model.end_s, real.end_s),
        )
        for part, limit in LIMITS.items()
    ]
    found.append(Difference("cached part", model.cached_part, real.cached_part, LIMIT))
    found.append(Difference("crowd, tokens/s", crowds[0].tokens_per_s, crowds[1].tokens_per_s, LIMIT))
    return found


def compare(replicas: int, seconds: float) -> bool:
    """Prints the differences; returns whether all are small."""
    requests = arrivals(replicas, seconds, seed=replicas)
    with tempfile.TemporaryDirectory() as name:
        script = Path(name, "script.json")
        answer = {"text": _TEXT, "token_ms": 1000 * _TOKEN_S}
        script.write_text(json.dumps({"answers": [answer], "prompt_token_ms": 1000 * _PROMPT_TOKEN_S}))
        options = ["--script", str(script), "--parallel", str(_PARALLEL), "--max-draft", "0"]
        options += ["--ctx-size", "4096", "--kv-tokens", "200000", "--cache-ram", "0"]
        with served(Path(name), ("cluster", "serve", *options), "scripted", replicas) as (url, _):
            loads = calibration(replicas), full(replicas), crowd(replicas), requests
            alone, together, crowded, real = (asyncio.run(sent(url, each)) for each in loads)
    machine = machine_of(alone, together)
    way = way_of(alone, replicas, machine)
    model = simulated(requests, replicas, machine, way)
    found = differences(model, real, (simulated(crowd(replicas), replicas, machine, way), crowded))
    steps_ms = [1000 * seconds for seconds in (machine.step_s, machine.step_per_answer_s)]
    print(
        f"{replicas} replicas, {len(requests)} requests. A step of one answer takes {steps_ms[0]:.2f} ms, and "
        f"{steps_ms[1]:.2f} ms for each further one; a request takes {1000 * way.to_first_token_s:.1f} ms besides steps"
    )
    print(*(f"  {difference}" for difference in found), sep="\n", flush=True)
    return all(difference.is_small for difference in found)


def main() -> None:
    """Compares each number of replicas."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--replicas", default="1,2,4")
    parser.add_argument("--seconds", type=float, default=240.0)
    given = parser.parse_args()
    are_small = [compare(int(replicas), given.seconds) for replicas in given.replicas.split(",")]
    sys.exit(0 if all(are_small) else 1)


if __name__ == "__main__":
    main()
