"""This checkout beside another one of Stoker: the same model and requests, in turn (A B A B), in one run.

    git worktree add ../before COMMIT && make -C ../before install
    .venv/bin/python benchmarks/beside_commit.py ../before/.venv/bin/python smollm2

Prints ratios of medians; above 1 this checkout is better. Seconds mean something only on a machine that does nothing
else; with other processes beside it, look at CPU time. `--json FILE` keeps all results for `stoker bench compare`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from statistics import median

import msgspec
from compare import Progress

import stoker
from stoker.bench.figures import Figures
from stoker.bench.results import Plan, Results, Sample, this_machine, write_results
from stoker.bench.runner import make_plan, measure
from stoker.bench.server import LaunchedServer
from stoker.models.store import resolve

BAR = 0.98
PLANS = (
    make_plan("distinct", concurrency=(1, 8), prompt_tokens=32, output_tokens=64),
    make_plan("distinct", concurrency=(1,), prompt_tokens=500, output_tokens=1, num_requests=6),
    make_plan("cold"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description="this checkout beside another one of Stoker")
    parser.add_argument("python", type=Path, help="the interpreter of the other checkout's environment")
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    pythons = {"before": str(args.python.absolute()), "now": sys.executable}
    servers = [server(name, python, args.model, args.threads) for name, python in pythons.items()]
    plans = tuple(msgspec.structs.replace(plan, repetitions=args.repetitions) for plan in PLANS)
    started_at = datetime.now().astimezone().isoformat(timespec="seconds")
    done = asyncio.run(measure(servers, plans, Progress()))
    for absent in done.absent:
        print(f"{absent.server} could not be measured with `{absent.scenario}`: {absent.reason}")
    rows = [*compared(plans, done.samples), ("CPU time of --help", *help_seconds(pythons, args.repetitions))]
    report(rows)
    if args.json is not None:
        results = Results(
            stoker_version=stoker.__version__,
            started_at=started_at,
            command=tuple(sys.argv),
            machine=this_machine(),
            servers=tuple(done.servers.values()),
            plans=plans,
            samples=tuple(done.samples),
            absent=tuple(done.absent),
        )
        write_results(results, args.json)
    return 1 if done.absent else 0


def server(name: str, python: str, model: str, threads: int) -> LaunchedServer:
    path = str(resolve(model))
    command = (python, "-m", "stoker", "serve", path, "--port", "{port}", "--threads", str(threads), "--parallel", "8")
    return LaunchedServer(name=name, command=(*command, "--ctx-size", "2048"), model_name=Path(path).stem)


def compared(plans: Sequence[Plan], samples: Sequence[Sample]) -> list[tuple[str, float, float]]:
    """What each point of each plan takes: seconds, and CPU seconds of the server; before, and now."""
    rows: list[tuple[str, float, float]] = []
    points = dict.fromkeys((s.scenario, s.concurrency, s.phase, s.figures.prompt_tokens) for s in samples)
    for scenario, concurrency, phase, num_prompt in points:
        found = [s for s in samples if (s.scenario, s.concurrency, s.phase) == (scenario, concurrency, phase)]
        found = [s for s in found if s.figures.prompt_tokens == num_prompt]
        label = f"{scenario} {phase} {num_prompt} prompt tokens, {concurrency} at a time"
        for what, measured in MEASURED.items():
            before, now = (values(found, name, measured) for name in ("before", "now"))
            if before and now:
                rows.append((f"{label}: {what}", median(before), median(now)))
    return rows


MEASURED: dict[str, Callable[[Figures], float | None]] = {
    "seconds": lambda figures: figures.duration_s,
    "CPU seconds": lambda figures: figures.resources.server_cpu_s,
    "median time to first token": lambda figures: figures.ttft_p50_s,
}


def values(samples: Sequence[Sample], name: str, measured: Callable[[Figures], float | None]) -> list[float]:
    found = [measured(sample.figures) for sample in samples if sample.server == name]
    return [value for value in found if value is not None]


def help_seconds(pythons: dict[str, str], repetitions: int) -> tuple[float, float]:
    """CPU seconds of `stoker --help`: before, and now."""
    taken: dict[str, list[float]] = {name: [] for name in pythons}
    for _ in range(2 * repetitions):
        for name, python in pythons.items():
            began = child_cpu_s()
            subprocess.run([python, "-m", "stoker", "--help"], check=True, stdout=subprocess.DEVNULL)
            taken[name].append(child_cpu_s() - began)
    return median(taken["before"]), median(taken["now"])


def child_cpu_s() -> float:
    times = os.times()
    return times.children_user + times.children_system


def report(rows: Sequence[tuple[str, float, float]]) -> None:
    print(f"\n{'ratio':>7}{'before':>10}{'now':>10}   measured {time.strftime('%Y-%m-%d %H:%M')}")
    for label, before, now in rows:
        ratio = before / now
        print(f"{ratio:7.3f}{before:10.4f}{now:10.4f}   {label}{'' if ratio >= BAR else f'  BELOW {BAR}'}")


if __name__ == "__main__":
    sys.exit(main())
