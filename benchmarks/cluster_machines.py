"""The machines that `cluster_sim.py` makes up: replicas that compute in steps, and what one of them can do.

Each step computes all running answers and a part of the prompts, divided as the engine's scheduler divides it. A block
is in the cache as soon as it is computed, and a request whose beginning is being computed for another one waits for it,
as in the engine. The newest blocks are kept in a cache of bounded size. Nothing here decides where a request goes.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from stoker.core.blocks import BLOCK_ENTRIES
from stoker.core.step_plan import share_budget
from stoker.engine.blocks_held import POOL, RemovedBlocks, StoredBlocks
from stoker.engine.question_messages import BlocksHeld
from stoker.runtime.routing import BLOCK_TOKENS, Beginning

USUAL_ANSWER = 256
"""Tokens of an answer that a front expects at most."""
_BLOCKS = BLOCK_TOKENS // BLOCK_ENTRIES
"""Blocks of KV in a block of text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a replica can do, and what a front spends."""

    parallel: int = 8
    prompt_tokens_per_s: float = 600.0
    step_s: float = 0.02
    """Of a step with one running answer."""
    step_per_answer_s: float = 0.002
    """What each further one adds."""
    chunk_tokens: int = 128
    """Of prompts, in one step."""
    cache_tokens: int = 60_000
    front_s_per_token: float = 0.0
    """CPU time of a front for each token that passes it; a front has one core."""
    front_s_per_request: float = 0.0


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
    rank: tuple[int, int] = (0, 0)
    """Its priority and place in the order in which its replica admitted requests."""
    cached: int = 0
    prompt_left: int = 0
    answer_left: int = 0
    first_token_s: float = -1.0
    done_s: float = -1.0

    @property
    def num_pending(self) -> int:
        """Prompt tokens that are not computed, as `share_budget` calls them."""
        return self.prompt_left

    @property
    def work(self) -> int:
        """Tokens that it still costs its replica. A front counts the whole prompt until the first token arrives."""
        prompt = 0 if self.first_token_s >= 0 else self.beginning.num_tokens - self.cached
        return prompt + min(self.answer_left, USUAL_ANSWER)

    @property
    def computed_keys(self) -> tuple[bytes, ...]:
        """Blocks of its prompt that are computed, while it runs."""
        return self.beginning.keys[: (self.beginning.num_tokens - self.prompt_left) // BLOCK_TOKENS]


@dataclass(slots=True)
class Replica:
    """Steps, a queue, and a cache."""

    machine: Machine
    number: int = 0
    waiting: deque[Request] = field(default_factory=deque[Request])
    running: list[Request] = field(default_factory=list[Request])
    cache: OrderedDict[bytes, None] = field(default_factory=OrderedDict[bytes, None])
    is_stepping: bool = False
    num_said: int = 0
    computed_tokens: int = 0
    num_admitted: int = 0
    begun: list[Request] = field(default_factory=list[Request])
    """Requests with a first token from the last step."""
    ended: list[Request] = field(default_factory=list[Request])
    _chunks: dict[Request, int] = field(default_factory=dict[Request, int])
    """What the present step computes of prompts."""
    _came: set[bytes] = field(default_factory=set[bytes])
    _went: set[bytes] = field(default_factory=set[bytes])

    @property
    def has_news(self) -> bool:
        """The fronts have not been told everything."""
        return bool(not self.num_said or self._came or self._went)

    def holds(self, beginning: Beginning) -> int:
        """Tokens of a prompt that it would not have to compute now."""
        return min(self._num_cached(beginning) * BLOCK_TOKENS, beginning.num_tokens - 1)

    def begin_step(self) -> float:
        """Admits the requests for which there is room, and returns how long the step takes."""
        for request in [*self.waiting]:
            if len(self.running) == self.machine.parallel:
                break
            if self._is_computing_beginning_of(request):
                continue
            self.waiting.remove(request)
            request.cached = self._found(request.beginning)
            request.prompt_left = request.beginning.num_tokens - request.cached
            request.rank = (0, self.num_admitted)
            self.num_admitted += 1
            self.running.append(request)
        prompts = [request for request in self.running if request.prompt_left]
        self._chunks = dict(share_budget(prompts, self.machine.chunk_tokens))
        num_rows = sum(request.prompt_left == self._chunks.get(request, 0) for request in self.running)
        step_s = sum(self._chunks.values()) / self.machine.prompt_tokens_per_s
        if num_rows:
            step_s += self.machine.step_s + self.machine.step_per_answer_s * (num_rows - 1)
        return step_s

    def end_step(self) -> list[Request]:
        """Ends a step. Returns the requests with a new token: running answers, and prompts that the step has ended."""
        rows: list[Request] = []
        for request in self.running:
            is_first, chunk = request.prompt_left > 0, self._chunks.get(request, 0)
            request.prompt_left -= chunk
            self.computed_tokens += chunk
            if chunk:
                self._keep(request.computed_keys)
            if not request.prompt_left:
                rows.append(request)
                request.answer_left -= 1
                self.computed_tokens += 1
                if is_first:
                    self.begun.append(request)
        for request in [request for request in self.running if not request.prompt_left and request.answer_left <= 0]:
            self.running.remove(request)
            self.ended.append(request)
            self._keep(request.after or request.beginning.keys)
        return rows

    def say(self) -> BlocksHeld:
        """What has changed in its cache since it was asked last."""
        self.num_said += 1
        stored = [StoredBlocks(POOL, [number for key in self._came for number in numbers_of(key)])]
        removed = [RemovedBlocks(POOL, [number for key in self._went for number in numbers_of(key)])]
        self._came, self._went = set(), set()
        is_whole = self.num_said == 1
        return BlocksHeld(
            "", "it", self.num_said, is_whole=is_whole, stored=stored, removed=[] if is_whole else removed
        )

    def _is_computing_beginning_of(self, request: Request) -> bool:
        """A running request computes blocks that this one has in common with it, and that are not cached yet."""
        num_cached = self._num_cached(request.beginning)
        return any(
            _num_shared(other.beginning, request.beginning) > max(num_cached, len(other.computed_keys))
            for other in self.running
            if other.prompt_left
        )

    def _num_cached(self, beginning: Beginning) -> int:
        return next((n for n, key in enumerate(beginning.keys) if key not in self.cache), len(beginning.keys))

    def _found(self, beginning: Beginning) -> int:
        count = self._num_cached(beginning)
        for key in beginning.keys[:count]:
            self.cache.move_to_end(key)
        return min(count * BLOCK_TOKENS, beginning.num_tokens - 1)

    def _keep(self, keys: Sequence[bytes]) -> None:
        for key in reversed(keys):
            if key not in self.cache:
                _note(key, self._came, self._went)
            self.cache[key] = None
            self.cache.move_to_end(key)
        while len(self.cache) * BLOCK_TOKENS > self.machine.cache_tokens:
            _note(self.cache.popitem(last=False)[0], self._went, self._came)


def _num_shared(one: Beginning, other: Beginning) -> int:
    """Blocks with which both begin."""
    pairs = zip(one.keys, other.keys, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one.keys), len(other.keys)))


def _note(key: bytes, here: set[bytes], there: set[bytes]) -> None:
    """A block comes or goes; if it did the opposite since the fronts were told, nothing has changed."""
    if key in there:
        there.discard(key)
    else:
        here.add(key)


def numbers_of(key: bytes) -> list[int]:
    """The numbers of the blocks of KV in a block of text."""
    return [hash((key, part)) for part in range(_BLOCKS)]
