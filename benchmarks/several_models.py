"""What models cost each other that compute at the same time in one server: tokens of each, and of one alone, in turn.

    python benchmarks/several_models.py MODEL MODEL MODEL --streams 4 --seconds 20 --rounds 3

Each model has an engine process of its own, as in `stoker serve`, and as many streams that never end. In each round the
first model computes alone, then all of them together. `sum / alone` compares the tokens of all with those of the first
one alone, which is the same work if the files are the same; `least / mean` says how far the slowest model is behind.
Where a machine has other things to do, the column with tokens for each second of processor time is the one to read.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import psutil

from stoker.core.params import SamplingParams
from stoker.engine.client import EngineClient
from stoker.engine.config import EngineConfig
from stoker.engine.protocol import Output, Submit

_SETTLE_S = 1.0
"""Prompts are computed before tokens are counted."""
_CONTEXT = 2048


@dataclass
class Load:
    """The streams of one model, and what has come of them."""

    client: EngineClient
    num_tokens: int = 0
    num_requests: int = 0

    def cpu_s(self) -> float:
        """Processor time of the engine's process so far."""
        assert self.client.child_pid is not None
        times = psutil.Process(self.client.child_pid).cpu_times()
        return times.user + times.system

    async def stream(self) -> None:
        """Asks again and again; ended by cancelling it."""
        while True:
            self.num_requests += 1
            sampling = SamplingParams(
                temperature=0.7, seed=self.num_requests, ignore_eos=True, max_tokens=_CONTEXT // 2
            )
            submit = Submit(f"r{self.num_requests}", f"Story {self.num_requests}: once upon a time", sampling)
            async with aclosing(self.client.generate(submit)) as items:
                async for item in items:
                    if isinstance(item, Output):
                        self.num_tokens += len(item.token_ids)


@dataclass(frozen=True)
class Measured:
    """One window of time."""

    tokens: tuple[int, ...]
    """Of each model."""
    seconds: float
    cpu_s: float
    """Of all engine processes."""

    @property
    def rate(self) -> float:
        """Tokens a second, of all models."""
        return sum(self.tokens) / self.seconds

    @property
    def rate_of_cpu(self) -> float:
        """Tokens for each second of processor time."""
        return sum(self.tokens) / self.cpu_s

    @property
    def least_share(self) -> float:
        """Tokens of the slowest model, in those of the mean."""
        return min(self.tokens) * len(self.tokens) / max(1, sum(self.tokens))


async def measure(loads: Sequence[Load], num_streams: int, seconds: float) -> Measured:
    """Lets these models compute at the same time, and no others."""
    tasks = [asyncio.create_task(load.stream()) for load in loads for _ in range(num_streams)]
    try:
        await asyncio.sleep(_SETTLE_S)
        tokens, cpu_s, began = [load.num_tokens for load in loads], _cpu_s(loads), time.perf_counter()
        await asyncio.sleep(seconds)
        took = time.perf_counter() - began
        counts = tuple(load.num_tokens - before for load, before in zip(loads, tokens, strict=True))
        return Measured(counts, took, _cpu_s(loads) - cpu_s)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def compare(models: Sequence[Path], num_streams: int, seconds: float, rounds: int) -> None:
    """Prints a line for each round, and the medians."""
    clients = [EngineClient(_config(model, num_streams)) for model in models]
    try:
        loads = [Load(client) for client in clients if await client.start()]
        print("round: tok/s alone, together; sum / alone; the same for processor time; least / mean")
        found: list[tuple[float, float, float]] = []
        for number in range(1, rounds + 1):
            alone = await measure(loads[:1], num_streams, seconds)
            together = await measure(loads, num_streams, seconds)
            ratios = together.rate / alone.rate, together.rate_of_cpu / alone.rate_of_cpu, together.least_share
            found.append(ratios)
            print(f"{number}: {alone.rate:.1f}, {together.rate:.1f}; {_line(ratios)}", flush=True)
        print(f"median: {_line(tuple(map(statistics.median, zip(*found, strict=True))))}")
    finally:
        for client in clients:
            await client.close()


def _config(model: Path, num_streams: int) -> EngineConfig:
    return EngineConfig(
        model_path=str(model),
        ctx_size=_CONTEXT,
        parallel=num_streams,
        kv_tokens=_CONTEXT * num_streams,
        cache_ram=0,
        max_draft=0,
    )


def _line(ratios: Sequence[float]) -> str:
    return "; ".join(f"{ratio:.3f}" for ratio in ratios)


def _cpu_s(loads: Sequence[Load]) -> float:
    return sum(load.cpu_s() for load in loads)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--streams", type=int, default=4, help="of each model")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    asyncio.run(compare(args.models, args.streams, args.seconds, args.rounds))


if __name__ == "__main__":
    main()
