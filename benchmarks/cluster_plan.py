"""Plans a cluster past this machine, in the simulator: policies at a size, nodes for a service level, fronts.

    python benchmarks/cluster_plan.py policies --replicas 10,100
    python benchmarks/cluster_plan.py policies --replicas 1000 --seconds 20 --seeds 1
    python benchmarks/cluster_plan.py nodes --rate 10 --ttft 2
    python benchmarks/cluster_plan.py fronts --replicas 200

All of it is simulated, with the machine of `cluster_machines.py`: claims are about differences and proportions, never
about the latency of a cluster that was not run. Only a routing decision is measured: its code is that of a front.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import cluster_sim
from cluster_machines import Machine
from cluster_sim import Figures, agents, simulate

_TURNS = 3
_RATE = 0.14
"""Conversations that begin on a replica in a second, where no other rate is given: about two thirds of its limit."""
_REPLICAS_OF_A_FRONT = 50
"""By the CPU time that a front spends on tokens, requests and decisions."""
_COMPARED = ("stoker", "least work", "round robin")
_FRONT = {"front_s_per_token": 0.22e-3, "front_s_per_request": 1.5e-3}
"""CPU time of a front: `cluster_gates.py` measures it."""


def played(
    policy: str, replicas: int, fronts: int, *, rate: float, seed: int, machine: Machine, seconds: float = 60.0
) -> Figures:
    """Conversations that begin within so many seconds, to their ends."""
    requests = agents(conversations=max(20, round(rate * seconds)), turns=_TURNS, rate=rate, seed=seed)
    return simulate(requests, policy, num_replicas=replicas, num_fronts=fronts, machine=machine)


def policies(sizes: Sequence[int], seeds: int, seconds: float) -> None:
    """Each policy at each size, with as many fronts as the tokens need; the load grows with the size."""
    print(f"{'replicas':>8} {'fronts':>6} {'policy':12} {'cached':>15} {'TTFT p50 s':>13} {'TTFT p95 s':>13}")
    for size in sizes:
        fronts = max(1, size // _REPLICAS_OF_A_FRONT)
        for policy in _COMPARED:
            found = [
                played(policy, size, fronts, rate=_RATE * size, seed=seed, machine=Machine(), seconds=seconds)
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


def nodes(rate: float, ttft_s: float, seeds: int) -> None:
    """The smallest number of replicas whose 95th percentile is within the limit for every seed."""
    print(f"replicas for {rate:g} conversations per second and a time to first token of {ttft_s:g} s (95 %), simulated")
    for policy in _COMPARED:

        def is_enough(count: int, policy: str = policy) -> bool:
            fronts = max(1, count // _REPLICAS_OF_A_FRONT)
            return all(
                played(policy, count, fronts, rate=rate, seed=seed, machine=Machine()).ttft_p95_s <= ttft_s
                for seed in range(seeds)
            )

        print(f"{policy:12} {smallest(is_enough):6}", flush=True)


def smallest(is_enough: Callable[[int], bool]) -> int:
    """The smallest number for which it holds, if it holds for all larger ones.

    >>> smallest(lambda count: count >= 37)
    37
    """
    high = 1
    while not is_enough(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def fronts(replicas: int, seeds: int) -> None:
    """How many fronts it takes until they delay nothing."""
    tokens = 0.0
    print(f"{'fronts':>6} {'TTFT p50 s':>15} {'TTFT p95 s':>15} {'tokens/s':>12}   {replicas} replicas, simulated")
    for count in (0, 1, 2, 4, 8, 16, 32):
        machine = replace(Machine(), **_FRONT) if count else Machine()
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
    parser.add_argument("--rate", type=float, default=10.0, help="of `nodes`: conversations that begin in a second")
    parser.add_argument("--ttft", type=float, default=2.0, help="of `nodes`: the limit, in seconds")
    parser.add_argument("--seconds", type=float, default=60.0, help="of `policies`: in which conversations begin")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    sizes = [int(number) for number in given.replicas.split(",")]
    if given.what == "policies":
        policies(sizes, given.seeds, given.seconds)
    elif given.what == "nodes":
        nodes(given.rate, given.ttft, given.seeds)
    else:
        fronts(sizes[0], given.seeds)


if __name__ == "__main__":
    main()
