"""Plans a cluster past this machine, in the simulator: policies at a size, nodes for a service level, fronts.

    python benchmarks/cluster_plan.py policies --replicas 10,100
    python benchmarks/cluster_plan.py policies --replicas 1000 --seconds 20 --seeds 1
    python benchmarks/cluster_plan.py nodes --agents 100,400 --ttft 1,2
    python benchmarks/cluster_plan.py fronts --replicas 200

All of it is simulated, with the machine of `cluster_machines.py` or one that options describe, as `stoker bench`
measures it. Only a routing decision is measured: its code is that of a front.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import cluster_sim
from cluster_machines import Machine
from cluster_sim import REQUEST_EVERY_S, Figures, agents, simulate

_TURNS = 3
_RATE = 0.14
"""Conversations that begin on a replica in a second, where no other rate is given: about two thirds of its limit."""
_REPLICAS_OF_A_FRONT = 50
"""By the CPU time that a front spends on tokens, requests and decisions."""
_COMPARED = ("stoker", "least work", "round robin")
_NEEDED = ("stoker", "round robin")
_MOST_PER_RATE = 60
"""Replicas for one conversation per second, beyond which no number is looked for."""
_OPTIONS = ("parallel", "prompt_tokens_per_s", "step_s", "step_per_answer_s", "cache_tokens")
"""What a replica can do, as options."""
_FRONT = {"front_s_per_token": 0.22e-3, "front_s_per_request": 1.5e-3}
"""CPU time of a front: `cluster_gates.py` measures it."""


def played(
    policy: str, replicas: int, fronts: int, *, rate: float, seed: int, machine: Machine, seconds: float = 60.0
) -> Figures:
    """Conversations that begin within so many seconds, to their ends."""
    requests = agents(conversations=max(20, round(rate * seconds)), turns=_TURNS, rate=rate, seed=seed)
    return simulate(requests, policy, num_replicas=replicas, num_fronts=fronts, machine=machine)


def policies(sizes: Sequence[int], seeds: int, seconds: float, machine: Machine) -> None:
    """Each policy at each size, with as many fronts as the tokens need; the load grows with the size."""
    print(f"{'replicas':>8} {'fronts':>6} {'policy':12} {'cached':>15} {'TTFT p50 s':>13} {'TTFT p95 s':>13}")
    for size in sizes:
        fronts = max(1, size // _REPLICAS_OF_A_FRONT)
        for policy in _COMPARED:
            found = [
                played(policy, size, fronts, rate=_RATE * size, seed=seed, machine=machine, seconds=seconds)
                for seed in range(seeds)
            ]
            print(
                f"{size:8} {fronts:6} {policy:12} {_range(found, lambda f: 100 * f.cached_part, '%'):>15} "
                f"{_range(found, lambda f: f.ttft_p50_s):>13} {_range(found, lambda f: f.ttft_p95_s):>13}",
                flush=True,
            )
        print(f"{size:8} a routing decision takes {1000 * decision_s(size):.2f} ms of CPU on this machine", flush=True)


def _range(found: Sequence[Figures], value: Callable[[Figures], float], unit: str = "") -> str:
    values = sorted(map(value, found))
    return f"{values[0]:.1f}-{values[-1]:.1f}{unit}"


def nodes(agents_counts: Sequence[int], limits_s: Sequence[float], seeds: int, machine: Machine) -> None:
    """The smallest number of replicas whose 95th percentile is within the limit for every seed."""
    print(
        f"{'agents':>7} {'TTFT p95':>9} " + " ".join(f"{policy:>12}" for policy in _NEEDED) + "   replicas, simulated"
    )
    for count in agents_counts:
        rate = count / (_TURNS * REQUEST_EVERY_S)
        for limit_s in limits_s:
            found = [needed(policy, rate, limit_s, seeds, machine) for policy in _NEEDED]
            print(f"{count:7} {limit_s:8g}s " + " ".join(f"{number or 'none':>12}" for number in found), flush=True)


def needed(policy: str, rate: float, limit_s: float, seeds: int, machine: Machine) -> int | None:
    """The smallest number of replicas that is enough; None = a prompt alone takes longer than the limit."""

    def is_enough(count: int) -> bool:
        fronts = max(1, count // _REPLICAS_OF_A_FRONT)
        return all(
            played(policy, count, fronts, rate=rate, seed=seed, machine=machine).ttft_p95_s <= limit_s
            for seed in range(seeds)
        )

    return smallest(is_enough, most=round(rate * _MOST_PER_RATE) + 1)


def smallest(is_enough: Callable[[int], bool], most: int = 2**20) -> int | None:
    """The smallest number for which it holds, if it holds for all larger ones; None = for none up to the most.

    >>> smallest(lambda count: count >= 37), smallest(lambda count: count >= 37, most=30)
    (37, None)
    """
    high = 1
    while not is_enough(high):
        if high >= most:
            return None
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def fronts(replicas: int, seeds: int, base: Machine) -> None:
    """How many fronts it takes until they delay nothing."""
    tokens = 0.0
    print(f"{'fronts':>6} {'TTFT p50 s':>15} {'TTFT p95 s':>15} {'tokens/s':>12}   {replicas} replicas, simulated")
    for count in (0, 1, 2, 4, 8, 16, 32):
        machine = replace(base, **_FRONT) if count else base
        found = [
            played("stoker", replicas, max(1, count), rate=_RATE * replicas, seed=seed, machine=machine)
            for seed in range(seeds)
        ]
        tokens = max(f.answer_tokens / f.wall_s for f in found)
        name = str(count) if count else "free"
        print(
            f"{name:>6} {_range(found, lambda f: f.ttft_p50_s):>15} {_range(found, lambda f: f.ttft_p95_s):>15} "
            f"{tokens:12,.0f}",
            flush=True,
        )


def decision_s(replicas: int, repetitions: int = 200) -> float:
    """The time of one decision among so many replicas, by the code that a front runs."""
    front = cluster_sim.Front("stoker", replicas, 0, lambda: 0.0)
    requests = agents(conversations=repetitions + replicas, turns=1, rate=1.0, seed=0)
    for request in requests:
        request.prompt_left, request.answer_left = request.beginning.num_tokens, request.answer_tokens
    for request in requests[:replicas]:
        front.place(request, Machine())
    began = time.process_time()
    for request in requests[replicas:]:
        front.place(request, Machine())
    return (time.process_time() - began) / repetitions


def main() -> None:
    """Prints one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", choices=("policies", "nodes", "fronts"))
    parser.add_argument("--replicas", default="10,100", help="numbers; of `fronts` one")
    parser.add_argument(
        "--agents",
        default="100",
        help=f"of `nodes`: clients; each asks every {REQUEST_EVERY_S} s in the mean, {_TURNS} times in a row",
    )
    parser.add_argument("--ttft", default="2", help="of `nodes`: limits of the time to the first token, in seconds")
    parser.add_argument("--seconds", type=float, default=60.0, help="of `policies`: in which conversations begin")
    parser.add_argument("--seeds", type=int, default=3)
    for name in _OPTIONS:
        default: int | float = getattr(Machine(), name)
        kind = int if isinstance(default, int) else float
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=default)
    given = parser.parse_args()
    sizes = [int(number) for number in given.replicas.split(",")]
    machine = Machine(**{name: getattr(given, name) for name in _OPTIONS})
    if given.what == "policies":
        policies(sizes, given.seeds, given.seconds, machine)
    elif given.what == "nodes":
        agents_counts = [int(number) for number in given.agents.split(",")]
        nodes(agents_counts, [float(limit) for limit in given.ttft.split(",")], given.seeds, machine)
    else:
        fronts(sizes[0], given.seeds, machine)


if __name__ == "__main__":
    main()
