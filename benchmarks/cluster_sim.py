"""Simulates a cluster in its own time: fronts route by the functions that `stoker cluster serve` routes by.

    python benchmarks/cluster_sim.py --replicas 4 --fronts 2 --conversations 200

Only the machines are made up (`cluster_machines.py`). Policies are compared on the same arrivals. The figures say
nothing about the latency of any machine; `cluster_check.py` compares the simulator with replicas of known speed.
"""

from __future__ import annotations

import argparse
import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from cluster_machines import Machine, Replica, Request, numbers_of

from stoker.engine.protocol import Accepted
from stoker.engine.question_messages import BlocksHeld
from stoker.runtime.block_follower import LOOK_S
from stoker.runtime.cached_prefixes import CachedPrefixes
from stoker.runtime.routing import BLOCK_TOKENS, Beginning
from stoker.runtime.standings import Candidate, Standings

POLICIES = ("stoker", "by sent text", "each front alone", "least work", "round robin", "random")
"""`stoker`: replicas say which blocks they hold. By sent text: fronts hear what others have sent. Alone: neither."""
_HEAR = ("stoker", "by sent text")
_HEARS_S = 0.01
_BEAT_S = 1.0
_PAUSE_S = (5.0, 30.0)
"""Time between two requests of a conversation: bounds of an even distribution."""
REQUEST_EVERY_S = sum(_PAUSE_S) / 2
"""The mean time between two requests of an agent."""


def _accepted(beginning: Beginning) -> Accepted:
    blocks = [number for key in beginning.keys for number in numbers_of(key)]
    return Accepted("", beginning.num_tokens, blocks=blocks)


class Front:
    """Knows what it has sent itself, and what others have open, as the replicas said last."""

    def __init__(self, policy: str, num_replicas: int, seed: int, clock: Callable[[], float]) -> None:
        self._policy = policy
        self._random = random.Random(seed)
        self._prefixes = CachedPrefixes(clock)
        self._standings = Standings()
        self._changed = set(range(num_replicas))
        """Replicas that `_standings` is not up to date with."""
        self._open: list[set[Request]] = [set() for _ in range(num_replicas)]
        self._num_sent = [0] * num_replicas
        self._others = [(0, 0)] * num_replicas
        """Requests of other fronts at each replica, and the tokens that they still cost."""
        self._ranks = [self._random.random() for _ in range(num_replicas)]
        self._turn = self._random.randrange(num_replicas)
        self._busy_until = 0.0

    def pass_on(self, cpu_s: float, now: float) -> float:
        """Spends CPU time after all that came before; returns when that is done."""
        self._busy_until = max(now, self._busy_until) + cpu_s
        return self._busy_until

    def place(self, request: Request, machine: Machine) -> int:
        """Where it goes, by the policy."""
        count = len(self._open)
        if self._policy == "random":
            chosen = self._random.randrange(count)
        elif self._policy == "round robin":
            self._turn += 1
            chosen = self._turn % count
        else:
            chosen = self._chosen(request, machine)
        self._prefixes.note_sent(chosen, request.beginning)
        self._learn(request)
        self._open[chosen].add(request)
        self._num_sent[chosen] += 1
        self.note_change(chosen)
        return chosen

    def note_change(self, replica: int) -> None:
        """Its own requests at the replica have come further."""
        self._changed.add(replica)

    def hear(self, request: Request) -> None:
        """Another front has sent it."""
        if self._policy in _HEAR:
            self._prefixes.note_heard(request.replica, request.beginning)
            self._learn(request)

    def hear_loads(self, replica: int, others: tuple[int, int]) -> None:
        """A replica says what other fronts have open there."""
        self._others[replica] = others
        self.note_change(replica)

    def take(self, replica: int, said: BlocksHeld) -> None:
        """A replica says what it holds."""
        assert self._prefixes.note_held(replica, said)

    def _learn(self, request: Request) -> None:
        if self._policy == "stoker":
            self._prefixes.note_accepted(request.beginning, _accepted(request.beginning))

    def end(self, request: Request) -> None:
        """It has been answered."""
        self._prefixes.note_end(request.replica, request.beginning)
        self._open[request.replica].discard(request)
        self.note_change(request.replica)

    def _chosen(self, request: Request, machine: Machine) -> int:
        for number in self._changed:
            self._standings.put(self._candidate(number, machine))
        self._changed.clear()
        knows = self._policy != "least work"
        chosen = self._standings.choose(self._prefixes.matches(request.beginning) if knows else ())
        assert chosen is not None
        return chosen

    def _candidate(self, number: int, machine: Machine) -> Candidate:
        mine, (num_others, others_tokens) = self._open[number], self._others[number]
        return Candidate(
            number=number,
            work=sum(request.work for request in mine) + others_tokens,
            num_open=len(mine) + num_others,
            parallel=machine.parallel,
            max_open=machine.parallel + 256,
            num_sent=self._num_sent[number],
            rank=self._ranks[number],
        )


@dataclass(frozen=True, slots=True)
class Figures:
    """What came of one policy."""

    policy: str
    cached_part: float
    """Of all prompt tokens."""
    ttft_p50_s: float
    ttft_p95_s: float
    wall_s: float
    busiest_to_idlest: float
    """By the tokens that they computed."""
    computed_tokens: int
    answer_tokens: int


def simulate(
    requests: Sequence[Request], policy: str, *, num_replicas: int, num_fronts: int, machine: Machine | None = None
) -> Figures:
    """Runs all requests to their end.

    Args:
        requests: in the order of their arrival; they are used up.
        policy: one of `POLICIES`.
        num_replicas: all with the same machine.
        num_fronts: a request meets any of them, in turn.
        machine: of each replica.
    """
    simulation = _Simulation(requests, policy, num_replicas, num_fronts, machine or Machine())
    simulation.run()
    return _figures(policy, requests, simulation.replicas)


class _Simulation:
    """Events in the order of their times."""

    def __init__(
        self, requests: Sequence[Request], policy: str, num_replicas: int, num_fronts: int, machine: Machine
    ) -> None:
        self.replicas = [Replica(machine, number) for number in range(num_replicas)]
        self._machine = machine
        self._requests = requests
        self._num_left = len(requests)
        self._now = 0.0
        self._says, self._hears = policy == "stoker", policy in _HEAR
        self._fronts = [Front(policy, num_replicas, seed, lambda: self._now) for seed in range(num_fronts)]
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._num_events = 0

    def run(self) -> None:
        for number, request in enumerate(self._requests):
            request.front = number % len(self._fronts)
            self._at(request.arrives_s, partial(self._arrive, request))
        self._at(0.0, self._beat)
        if self._says:
            self._at(0.0, self._look)
        while self._events:
            self._now, _, do = heapq.heappop(self._events)
            do(self._now)

    def _at(self, when: float, do: Callable[[float], None]) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (when, self._num_events, do))

    def _arrive(self, request: Request, now: float) -> None:
        request.prompt_left, request.answer_left = request.beginning.num_tokens, request.answer_tokens
        request.replica = self._fronts[request.front].place(request, self._machine)
        replica = self.replicas[request.replica]
        request.cached = replica.holds(request.beginning)
        replica.waiting.append(request)
        self._at(now + _HEARS_S, partial(self._hear, request))
        self._note_change(request.replica, now)
        self._fronts[request.front].pass_on(self._machine.front_s_per_request, now)
        self._step(replica, now)

    def _hear(self, request: Request, _now: float) -> None:
        for number, front in enumerate(self._fronts):
            if number != request.front:
                front.hear(request)

    def _note_change(self, replica: int, now: float) -> None:
        """Requests have come, got their first token, or ended: the replica tells all fronts."""
        if self._hears:
            self._at(now + _HEARS_S, partial(self._hear_loads, replica, self._others(replica)))

    def _others(self, replica: int) -> list[tuple[int, int]]:
        """What the other fronts have open at a replica, for each front."""
        counts, work = Counter[int](), Counter[int]()
        for request in (*self.replicas[replica].waiting, *self.replicas[replica].running):
            counts[request.front] += 1
            work[request.front] += request.work
        num_open, num_tokens = counts.total(), work.total()
        return [(num_open - counts[front], num_tokens - work[front]) for front in range(len(self._fronts))]

    def _hear_loads(self, replica: int, others: Sequence[tuple[int, int]], _now: float) -> None:
        for front, its in zip(self._fronts, others, strict=True):
            front.hear_loads(replica, its)

    def _take(self, replica: int, said: BlocksHeld, _now: float) -> None:
        for front in self._fronts:
            front.take(replica, said)

    def _step(self, replica: Replica, now: float) -> None:
        if not replica.is_stepping and (replica.waiting or replica.running):
            replica.is_stepping = True
            self._at(now + replica.begin_step(), partial(self._finish, replica))
            self._note_progress(replica)

    def _note_progress(self, replica: Replica) -> None:
        for front in {request.front for request in replica.running}:
            self._fronts[front].note_change(replica.number)

    def _finish(self, replica: Replica, now: float) -> None:
        replica.is_stepping = False
        self._note_progress(replica)
        passing = Counter(request.front for request in replica.end_step())
        spent_s = self._machine.front_s_per_token
        if replica.begun or replica.ended:
            self._note_change(replica.number, now)
        arrives = {number: self._fronts[number].pass_on(count * spent_s, now) for number, count in passing.items()}
        while replica.begun:
            request = replica.begun.pop()
            request.first_token_s = arrives[request.front]
        while replica.ended:
            request = replica.ended.pop()
            request.done_s = arrives[request.front]
            self._num_left -= 1
            self._fronts[request.front].end(request)
        self._step(replica, now)

    def _look(self, now: float) -> None:
        for number, replica in enumerate(self.replicas):
            if replica.has_news:
                self._at(now + _HEARS_S, partial(self._take, number, replica.say()))
        if self._num_left:
            self._at(now + LOOK_S, self._look)

    def _beat(self, now: float) -> None:
        for replica in self.replicas:
            self._hear_loads(replica.number, self._others(replica.number), now)
        if self._num_left:
            self._at(now + _BEAT_S, self._beat)


def _figures(policy: str, requests: Sequence[Request], replicas: Sequence[Replica]) -> Figures:
    waits = sorted(request.first_token_s - request.arrives_s for request in requests)
    computed = [replica.computed_tokens for replica in replicas]
    return Figures(
        policy=policy,
        cached_part=sum(r.cached for r in requests) / sum(r.beginning.num_tokens for r in requests),
        ttft_p50_s=waits[len(waits) // 2],
        ttft_p95_s=waits[int(0.95 * len(waits))],
        wall_s=max(request.done_s for request in requests),
        busiest_to_idlest=max(computed) / max(1, min(computed)),
        computed_tokens=sum(computed),
        answer_tokens=sum(request.answer_tokens for request in requests),
    )


def agents(*, conversations: int, turns: int, rate: float, seed: int, shared_tokens: int = 512) -> list[Request]:
    """Conversations that share a system prompt, and whose turns come after each other with pauses.

    Args:
        conversations: how many.
        turns: of each.
        rate: conversations that begin in a second.
        seed: of all that is drawn.
        shared_tokens: of the system prompt.
    """
    drawn = random.Random(seed)
    shared = [b"system %d" % number for number in range(shared_tokens // BLOCK_TOKENS)]
    found: list[Request] = []
    begins = 0.0
    for conversation in range(conversations):
        begins += drawn.expovariate(rate)
        found += _turns(drawn, shared, conversation, turns, begins)
    return sorted(found, key=lambda request: request.arrives_s)


def _turns(
    drawn: random.Random, shared: Sequence[bytes], conversation: int, turns: int, begins: float
) -> Iterator[Request]:
    keys, now = list(shared), begins
    for _ in range(turns):
        question, answer = drawn.randint(64, 512), drawn.randint(32, 256)
        for _ in range(question // BLOCK_TOKENS):
            keys.append(b"%d %d" % (conversation, len(keys)))
        prompt = Beginning(tuple(keys), len(keys) * BLOCK_TOKENS + question % BLOCK_TOKENS + 1)
        for _ in range(answer // BLOCK_TOKENS):
            keys.append(b"%d %d" % (conversation, len(keys)))
        yield Request(now, prompt, answer, tuple(keys))
        now += drawn.uniform(*_PAUSE_S)


def main() -> None:
    """Prints a table of all policies."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--fronts", type=int, default=1)
    parser.add_argument("--conversations", type=int, default=200)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--rate", type=float, default=0.8, help="conversations that begin in a second")
    parser.add_argument("--cache-tokens", type=int, default=Machine().cache_tokens, help="of each replica")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    machine = Machine(cache_tokens=given.cache_tokens)
    print("simulated; policies compared on the same arrivals, not latencies of a machine")
    print(f"{'policy':22} {'cached':>7} {'TTFT p50':>9} {'p95':>8} {'wall':>8} {'max/min':>8} {'computed':>10}")
    for policy in POLICIES:
        requests = agents(conversations=given.conversations, turns=given.turns, rate=given.rate, seed=given.seed)
        found = simulate(requests, policy, num_replicas=given.replicas, num_fronts=given.fronts, machine=machine)
        print(
            f"{policy:22} {found.cached_part:7.1%} {found.ttft_p50_s:8.2f}s {found.ttft_p95_s:7.2f}s "
            f"{found.wall_s:7.0f}s {found.busiest_to_idlest:8.2f} {found.computed_tokens:10,}"
        )


if __name__ == "__main__":
    main()
