"""What the tiers of the prefix cache cost: throughput with them beside throughput without, on the same build.

    python benchmarks/tiers_cost.py smollm2.gguf

Three servers of one model: without tiers (`--cache-ram 0`), with memory as by default, and with a folder besides. All
of them live at the same time and take turns in the same work, in rounds there and back (A B C C B A), so that what
drifts evenly cancels out. A line is the median of rounds' ratios to the server without tiers, and an interval that
holds the medians of 95 % of resamples of the rounds (the bootstrap). 1 = they cost nothing; the aim is 0.97 at least.
Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence

import numpy as np

from stoker.bench.figures import figures_of
from stoker.bench.load import Load
from stoker.bench.results import Plan
from stoker.bench.runner import make_plan
from stoker.bench.scenarios import SCENARIOS, Turn, warm_up
from stoker.bench.server import LaunchedServer

NUM_RESAMPLES = 2000
_CONTEXT = 32_768

PLANS = {
    plan.scenario: plan
    for plan in (
        make_plan("distinct", concurrency=(8,)),
        make_plan("shared"),
        make_plan("agent", num_requests=10, turns=3),
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
    try:
        loads = [Load(await side.start()) for side in sides]
        for load in loads:
            await warm_up(load)
        for scenario in scenarios:
            ratios = await _ratios(PLANS[scenario], sides, loads, seconds)
            for side, own in zip(sides[1:], np.transpose(ratios), strict=True):
                print(f"{scenario:>9} with {side.name:17} {_summary(own)}", flush=True)
    finally:
        for side in sides:
            await side.stop()


async def _ratios(
    plan: Plan, sides: Sequence[LaunchedServer], loads: Sequence[Load], seconds: float
) -> list[list[float]]:
    """For each round, the throughput of each side but the first over that of the first."""
    until, rounds = time.monotonic() + seconds, list[list[float]]()
    while time.monotonic() < until or len(rounds) < 2:
        spent = [0.0] * len(sides)
        # The way back does other work than the way there, or it would be cached.
        for number, order in ((0, range(len(sides))), (1, reversed(range(len(sides))))):
            for side in order:
                spent[side] += await _seconds(Turn(plan, sides[side], loads[side], 2 * len(rounds) + number))
        rounds.append([spent[0] / own for own in spent[1:]])
    return rounds


async def _seconds(turn: Turn) -> float:
    """For each output token of one repetition: all sides give the same number of them."""
    whole = await anext(SCENARIOS[turn.plan.scenario].run(turn))
    figures = figures_of(whole.answers, turn.plan.limits)
    if figures.num_failed:
        raise SystemExit(f"{turn.server.name}: {figures.failures} {figures.examples}")
    return 1 / figures.output_tokens_per_s


def _summary(ratios: Sequence[float]) -> str:
    resampled = np.random.default_rng(0).choice(ratios, (NUM_RESAMPLES, len(ratios)))
    low, high = np.percentile(np.median(resampled, axis=1), (2.5, 97.5))
    return f"{np.median(ratios):.3f} ({low:.3f} … {high:.3f}), {len(ratios)} rounds"


if __name__ == "__main__":
    main()
