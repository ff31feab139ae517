"""Simulates a cluster in its own time: fronts route by the functions that `stoker cluster serve` routes by.

    python benchmarks/cluster_sim.py --replicas 4 --fronts 2 --conversations 200

Only the machines are made up: a replica computes steps, each with all running answers and a part of one prompt, and
keeps the newest blocks in a cache of bounded size. Policies are compared on the same arrivals. The figures say nothing
about the absolute latency of any machine.
"""

from __future__ import annotations

import argparse
import heapq
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from stoker.core.blocks import BLOCK_ENTRIES
from stoker.engine.blocks_held import POOL, RemovedBlocks, StoredBlocks
from stoker.engine.protocol import Accepted
from stoker.engine.question_messages import BlocksHeld
from stoker.runtime.block_follower import LOOK_S
from stoker.runtime.cached_prefixes import CachedPrefixes
from stoker.runtime.routing import BLOCK_TOKENS, Beginning, Candidate, choose

POLICIES = ("stoker", "by sent text", "each front alone", "least work", "round robin", "random")
"""`stoker`: replicas say which blocks they hold. By sent text: fronts hear what others have sent. Alone: neither."""
_HEAR = ("stoker", "by sent text")
_HEARS_S = 0.01
_BEAT_S = 1.0
_USUAL_ANSWER = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a replica can do."""

    parallel: int = 8
    prompt_tokens_per_s: float = 600.0
    step_s: float = 0.02
    """Of a step with one running answer."""
    step_per_answer_s: float = 0.002
    """What each further one adds."""
    chunk_tokens: int = 128
    """Of a prompt, in one step."""
    cache_tokens: int = 60_000


@dataclass(slots=True, eq=False)
class Request:
    """One turn of a conversation."""

    arrives_s: float
    beginning: Beginning
    answer_tokens: int
    after: tuple[bytes, ...] = ()
    """The keys of the conversation with its answer, which the next turn begins with."""
    front: int = 0
    replica: int = -1
    cached: int = 0
    prompt_left: int = 0
    answer_left: int = 0
    first_token_s: float = -1.0
    done_s: float = -1.0


@dataclass(slots=True)
class Replica:
    """Steps, a queue, and a cache."""

    machine: Machine
    waiting: deque[Request] = field(default_factory=deque[Request])
    running: list[Request] = field(default_factory=list[Request])
    cache: OrderedDict[bytes, None] = field(default_factory=OrderedDict[bytes, None])
    is_stepping: bool = False
    said: set[bytes] = field(default_factory=set[bytes])
    """The blocks of the cache that it has told the fronts."""
    num_said: int = 0
    computed_tokens: int = 0
    ended: list[Request] = field(default_factory=list[Request])

    def begin_step(self) -> float:
        """Admits the requests for which there is room, and returns how long the step takes."""
        while self.waiting and len(self.running) < self.machine.parallel:
            request = self.waiting.popleft()
            request.cached = self._found(request.beginning)
            request.prompt_left = request.beginning.num_tokens - request.cached
            self.running.append(request)
        prompt = next((request for request in self.running if request.prompt_left), None)
        chunk = 0 if prompt is None else min(self.machine.chunk_tokens, prompt.prompt_left)
        answers = sum(not request.prompt_left for request in self.running)
        step_s = chunk / self.machine.prompt_tokens_per_s
        return step_s + (self.machine.step_s + self.machine.step_per_answer_s * (answers - 1) if answers else 0.0)

    def end_step(self, now: float) -> None:
        """What the step has computed."""
        prompts = [request for request in self.running if request.prompt_left]
        for request in self.running:
            if not request.prompt_left:
                request.answer_left -= 1
                self.computed_tokens += 1
        if prompts:
            chunk = min(self.machine.chunk_tokens, prompts[0].prompt_left)
            prompts[0].prompt_left -= chunk
            self.computed_tokens += chunk
            if not prompts[0].prompt_left:
                prompts[0].first_token_s = now
        for request in [request for request in self.running if not request.prompt_left and request.answer_left <= 0]:
            request.done_s = now
            self.running.remove(request)
            self.ended.append(request)
            self._keep(request.after or request.beginning.keys)

    def say(self) -> BlocksHeld:
        """What has changed in its cache since it was asked last."""
        now, before, self.num_said = set(self.cache), self.said, self.num_said + 1
        self.said = now
        stored = [StoredBlocks(POOL, [number for key in now - before for number in _numbers(key)])]
        removed = [RemovedBlocks(POOL, [number for key in before - now for number in _numbers(key)])]
        is_whole = self.num_said == 1
        return BlocksHeld(
            "", "it", self.num_said, is_whole=is_whole, stored=stored, removed=[] if is_whole else removed
        )

    def _found(self, beginning: Beginning) -> int:
        count = 0
        for key in beginning.keys:
            if key not in self.cache:
                break
            self.cache.move_to_end(key)
            count += 1
        return min(count * BLOCK_TOKENS, beginning.num_tokens - 1)

    def _keep(self, keys: Sequence[bytes]) -> None:
        for key in reversed(keys):
            self.cache[key] = None
            self.cache.move_to_end(key)
        while len(self.cache) * BLOCK_TOKENS > self.machine.cache_tokens:
            self.cache.popitem(last=False)


_BLOCKS = BLOCK_TOKENS // BLOCK_ENTRIES
"""Blocks of KV in a block of text."""


def _numbers(key: bytes) -> list[int]:
    return [hash((key, part)) for part in range(_BLOCKS)]


def _accepted(beginning: Beginning) -> Accepted:
    blocks = [number for key in beginning.keys for number in _numbers(key)]
    return Accepted("", beginning.num_tokens, blocks=blocks)


class Front:
    """Knows what it has sent itself, and what others had open at the last beat."""

    def __init__(self, policy: str, num_replicas: int, seed: int, clock: Callable[[], float]) -> None:
        self._policy = policy
        self._random = random.Random(seed)
        self._prefixes = CachedPrefixes(clock)
        self._open: list[set[Request]] = [set() for _ in range(num_replicas)]
        self._num_sent = [0] * num_replicas
        self.others = [0] * num_replicas
        self._turn = seed

    def num_open(self, replica: int) -> int:
        """Requests of this front that have not ended there."""
        return len(self._open[replica])

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
        return chosen

    def hear(self, request: Request) -> None:
        """Another front has sent it."""
        if self._policy in _HEAR:
            self._prefixes.note_heard(request.replica, request.beginning)
            self._learn(request)

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

    def _chosen(self, request: Request, machine: Machine) -> int:
        knows = self._policy != "least work"
        beginning = request.beginning
        matched = self._prefixes.matched_tokens(beginning)
        candidates = [
            Candidate(
                number=number,
                work=sum(map(_work, mine)) + _USUAL_ANSWER * self.others[number],
                matched=matched(number) if knows else 0,
                num_open=len(mine) + self.others[number],
                parallel=machine.parallel,
                max_open=machine.parallel + 256,
                num_sent=self._num_sent[number],
            )
            for number, mine in enumerate(self._open)
        ]
        chosen = choose(candidates, beginning)
        assert chosen is not None
        return chosen


def _work(request: Request) -> int:
    return request.prompt_left + min(request.answer_left, _USUAL_ANSWER)


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
        self.replicas = [Replica(machine) for _ in range(num_replicas)]
        self._machine = machine
        self._requests = requests
        self._now = 0.0
        self._says = policy == "stoker"
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
        replica.waiting.append(request)
        for number, front in enumerate(self._fronts):
            if number != request.front:
                self._at(now + _HEARS_S, lambda _, front=front: front.hear(request))
        self._step(replica, now)

    def _step(self, replica: Replica, now: float) -> None:
        if not replica.is_stepping and (replica.waiting or replica.running):
            replica.is_stepping = True
            self._at(now + replica.begin_step(), partial(self._finish, replica))

    def _finish(self, replica: Replica, now: float) -> None:
        replica.is_stepping = False
        replica.end_step(now)
        while replica.ended:
            request = replica.ended.pop()
            self._fronts[request.front].end(request)
        self._step(replica, now)

    def _look(self, now: float) -> None:
        for number, replica in enumerate(self.replicas):
            if not replica.num_said or replica.said != set(replica.cache):
                said = replica.say()
                for front in self._fronts:
                    self._at(now + _HEARS_S, lambda _, f=front, n=number, s=said: f.take(n, s))
        if any(request.done_s < 0 for request in self._requests):
            self._at(now + LOOK_S, self._look)

    def _beat(self, now: float) -> None:
        for front in self._fronts:
            for number in range(len(self.replicas)):
                front.others[number] = sum(other.num_open(number) for other in self._fronts if other is not front)
        if any(request.done_s < 0 for request in self._requests):
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
        now += drawn.uniform(5, 30)


def main() -> None:
    """Prints a table of all policies."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--fronts", type=int, default=1)
    parser.add_argument("--conversations", type=int, default=200)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--rate", type=float, default=0.8, help="conversations that begin in a second")
    parser.add_argument("--cache-tokens", type=int, default=Machine.cache_tokens, help="of each replica")
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
