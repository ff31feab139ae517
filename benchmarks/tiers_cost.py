"""What the tiers of the prefix cache cost: throughput with them beside throughput without, on the same build.

    python benchmarks/tiers_cost.py smollm2.gguf

Three servers of one model: without tiers (`--cache-ram 0`), with memory as by default, and with a folder besides. All
of them live at the same time and take turns in the same work, there and back (A B C C B A), so that what drifts evenly
cancels out. After two times there and back, which is a round, others are started: where a server's memory happens to
lie is felt for as long as it lives. A line tells output tokens a second, and output tokens for each second of CPU time
that the server's processes take, what they do soon afterwards included: of both the median of rounds' ratios to the
server without tiers, and an interval that holds the medians of 95 % of resamples of the rounds (the bootstrap). 1 = the
tiers cost nothing; the aim is 0.97 at least. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence

import numpy as np
import psutil
from numpy.typing import NDArray

from stoker.bench.figures import figures_of
from stoker.bench.load import Load
from stoker.bench.results import Plan
from stoker.bench.runner import make_plan
from stoker.bench.scenarios import SCENARIOS, Turn, warm_up
from stoker.bench.server import LaunchedServer

NUM_RESAMPLES = 2000
_CONTEXT = 32_768
_WAYS = 4
"""There, back, there, back."""
_SETTLE_S = 0.25
"""So long after its last answer a server has brought to safety what it will, and is not felt by the others any more."""

PLANS = {
    plan.scenario: plan
    for plan in (
        make_plan("distinct", concurrency=(8,)),
        make_plan("shared"),
        make_plan("agent", num_requests=10, turns=3, prompt_tokens=128, shared_tokens=512, output_tokens=16),
        make_plan("mixed", output_tokens=96),
    )
}


def main() -> None:
    parser = argparse.ArgumentParser(description="What the tiers cost, see the head of this file")
    parser.add_argument("model")
    parser.add_argument("--scenarios", nargs="*", default=list(PLANS), choices=list(PLANS), metavar="SCENARIO")
    parser.add_argument("--seconds", type=float, default=60, help="of measuring, for each scenario")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--parallel", type=int, default=8)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(compare(servers(given, folder), given.scenarios, given.seconds))


def servers(given: argparse.Namespace, folder: str) -> list[LaunchedServer]:
    """The one without tiers first."""
    sides = {"none": ("--cache-ram", "0"), "memory": (), "memory and folder": ("--cache-dir", folder)}
    return [LaunchedServer(name, _command(given, options)) for name, options in sides.items()]


def _command(given: argparse.Namespace, options: Sequence[str]) -> list[str]:
    sizes = {"--threads": given.threads, "--parallel": given.parallel, "--ctx-size": 8192, "--kv-tokens": _CONTEXT}
    numbers = [part for name, value in sizes.items() for part in (name, str(value))]
    return [sys.executable, "-m", "stoker", "serve", given.model, "--port", "{port}", *numbers, *options]


async def compare(sides: Sequence[LaunchedServer], scenarios: Sequence[str], seconds: float) -> None:
    """Prints a line for each scenario and each server that has tiers."""
    for scenario in scenarios:
        until, rounds = time.monotonic() + seconds, list[NDArray[np.float64]]()
        while time.monotonic() < until or len(rounds) < 2:
            rounds.append(await _ratios(PLANS[scenario], sides, len(rounds)))
        for side, (wall, cpu) in zip(sides[1:], np.stack(rounds, axis=-1), strict=True):
            parts = f"throughput {_summary(wall)}   per CPU second {_summary(cpu)}"
            print(f"{scenario:>9} with {side.name:17} {parts}   {len(wall)} rounds", flush=True)


async def _ratios(plan: Plan, sides: Sequence[LaunchedServer], number: int) -> NDArray[np.float64]:
    """Of what each side but the first took in a round, how much the first one took: `(sides, wall and CPU)`."""
    there, spent = range(len(sides)), np.zeros((len(sides), 2))
    try:
        loads = [Load(await side.start()) for side in sides]
        for load in loads:
            await warm_up(load)
        # Each way does other work than the one before, or it would be cached.
        for way in range(_WAYS):
            for side in reversed(there) if way % 2 else there:
                spent[side] += await _seconds(Turn(plan, sides[side], loads[side], number * _WAYS + way))
    finally:
        for side in sides:
            await side.stop()
    return spent[0] / spent[1:]


async def _seconds(turn: Turn) -> tuple[float, float]:
    """On the clock and of CPU time, for each output token of one repetition."""
    assert turn.server.pid is not None, "it was started here"
    server = psutil.Process(turn.server.pid)
    used_s = _cpu_s(server)
    whole = await anext(SCENARIOS[turn.plan.scenario].run(turn))
    await asyncio.sleep(_SETTLE_S)
    used_s = _cpu_s(server) - used_s
    figures = figures_of(whole.answers, turn.plan.limits)
    if figures.num_failed:
        raise SystemExit(f"{turn.server.name}: {figures.failures} {figures.examples}")
    return 1 / figures.output_tokens_per_s, used_s / sum(answer.num_output for answer in whole.answers)


def _cpu_s(root: psutil.Process) -> float:
    times = [process.cpu_times() for process in (root, *root.children(recursive=True))]
    return sum(own.user + own.system for own in times)


def _summary(ratios: NDArray[np.float64]) -> str:
    resampled = np.random.default_rng(0).choice(ratios, (NUM_RESAMPLES, len(ratios)))
    low, high = np.percentile(np.median(resampled, axis=1), (2.5, 97.5))
    return f"{np.median(ratios):.3f} ({low:.3f} … {high:.3f})"


if __name__ == "__main__":
    main()
