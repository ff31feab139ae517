"""Drives a scheduler over a scripted backend, step by step, with everything checked after each step."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count
from pathlib import Path
from typing import Any

import numpy as np

from stoker.backends.base import Backend
from stoker.backends.scripted import ScriptedBackend, ScriptedTokenizer, scripted_info
from stoker.cache.store import KVStore
from stoker.core.batch import Batch, Chunk
from stoker.core.model_info import CacheTraits, ModelInfo
from stoker.core.params import BUILT_IN, SamplingParams
from stoker.core.request import Request
from stoker.core.scheduler import Scheduler, SchedulerConfig
from stoker.core.sequence import FinishReason, TokenEvent
from stoker.engine.loaded import Loaded
from stoker.engine.transfers import Transfers
from stoker.errors import BackendError
from stoker.text.tokenizer import Tokenizer

ALL_TRAITS = [
    CacheTraits(can_truncate=True, can_copy=True, shares_cells=True),
    CacheTraits(can_truncate=True, can_copy=True, shares_cells=False),
    CacheTraits(can_truncate=True, can_copy=False, shares_cells=False),
    CacheTraits(can_truncate=False, can_copy=False, shares_cells=False),
    CacheTraits(can_truncate=False, can_copy=True, shares_cells=True),
    CacheTraits(can_truncate=False, can_copy=True, shares_cells=False),
    CacheTraits(can_truncate=False, can_copy=True, copies_whole=True, shares_cells=True),
    CacheTraits(can_truncate=False, can_copy=True, copies_whole=True, shares_cells=True, exports_apart=True),
]
MAX_STEPS = 20_000
MAX_TIER_WAIT_S = 0.05
"""After that it is looked whether the tiers still hope."""


def steady_clock() -> Callable[[], float]:
    """Seconds on a machine that has nothing else to do."""
    return count(0.0, 1e-5).__next__


def crowded_clock(rng: random.Random) -> Callable[[], float]:
    """Seconds on one that does something else now and then."""
    return accumulate(iter(lambda: rng.choice([1e-6, 1e-5, 1e-4, 1e-3, 1.0]), None)).__next__


def prompt_step(num_tokens: int) -> Batch:
    """A step that computes so many entries of one prompt, for who learns what steps cost."""
    return Batch(2, (Chunk(0, 0, tuple(range(num_tokens))),))


def loaded(backend: Backend, tokenizer: Tokenizer | None = None, **fields: Any) -> Loaded:
    """An open model, for engines: a backend with a tokenizer (the scripted one, unless another is given).

    Args:
        fields: of `Loaded`, such as `kv_port` or `embedder`; what is not given, the model does not have.
    """
    about: dict[str, Any] = {"defaults": BUILT_IN, "chat_template": None, "num_parameters": 0, "size_bytes": 0}
    about |= {"backend_name": "scripted", "path": Path(), **fields}
    return Loaded(backend=backend, tokenizer=tokenizer or ScriptedTokenizer(), **about)


def make_request(request_id: str, prompt: Iterable[int], max_tokens: int = 8, **fields: object) -> Request:
    sampling = SamplingParams(temperature=0, max_tokens=max_tokens)
    return Request(request_id=request_id, prompt=tuple(prompt), sampling=sampling, **fields)  # type: ignore[arg-type]


@dataclass
class Loop:
    """A scheduler and a backend, joined by an arg-max."""

    info: ModelInfo = field(default_factory=scripted_info)
    max_running: int = 4
    backend: ScriptedBackend = field(init=False)
    scheduler: Scheduler = field(init=False)
    tokens: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    reasons: dict[str, FinishReason] = field(default_factory=dict[str, FinishReason])
    before_forward: Callable[..., None] | None = None
    unusable: set[str] = field(default_factory=set[str])
    """Requests whose next row of logits counts as unusable."""
    store: KVStore | None = None
    """Tiers behind the pool."""
    clock: Callable[[], float] = field(default_factory=steady_clock)
    """What moving KV takes: never the time of the machine that the test runs on."""
    images: dict[bytes, list[float]] = field(default_factory=dict[bytes, list[float]])
    """By key, the rows of spans; what is wanted of them comes when `delay` says so."""
    delay: Callable[[], int] = field(default=lambda: 0)
    """Steps from the moment when rows are wanted."""
    num_given: int = 0
    """How often rows were given."""
    num_preempted: int = 0
    num_paused: int = 0
    num_drafted: int = 0
    num_accepted: int = 0

    def __post_init__(self) -> None:
        self.backend = ScriptedBackend(self.info, before_forward=self.before_forward)
        self.scheduler = Scheduler(self.info, SchedulerConfig(max_running=self.max_running), self.store)
        self.coming: list[tuple[int, bytes]] = []
        """Rows on their way: after how many steps they are there, and their key."""
        self.arrival = threading.Event()
        self.transfers = None
        if self.store is not None:
            self.transfers = Transfers(self.backend, self.store, self.scheduler, self.clock)
            self.store.on_arrival(self.arrival.set)

    def add(self, request: Request) -> None:
        request.check_fits(self.info)
        self.backend.adapters |= {key for key, _ in request.adapters}
        self.scheduler.add(request)
        self.tokens[request.request_id] = []

    def abort(self, request_id: str) -> None:
        event = self.scheduler.abort(request_id)
        if event is not None:
            self._take(event)

    def step(self) -> None:
        if self.transfers is not None:
            self.transfers.export()
        batch = self.scheduler.schedule()
        waits = self.scheduler.awaits_tiers or self.scheduler.awaits_rows or self.scheduler.kv.lends
        self._move_rows()
        if batch is None:
            assert waits, "work waits, but nothing was scheduled"
            if self.scheduler.awaits_tiers:
                self.arrival.wait(MAX_TIER_WAIT_S)
                self.arrival.clear()
            return
        try:
            logits = self.backend.forward(batch)
        except BackendError:
            events = self.scheduler.fail(batch)
        else:
            if self.transfers is not None:
                self.transfers.restore(batch)
            assert self.backend.num_cells == self.scheduler.kv.ledger.used, "cells held are not the cells promised"
            events = self._update(batch, [int(row.argmax()) for row in logits])
        for event in events:
            self._take(event)
        self.scheduler.check_integrity()

    def _move_rows(self) -> None:
        """Drops what is not needed, notes what is wanted, and gives what has come, all before the forward pass."""
        for key in self.scheduler.rows_given_up():
            self.backend.drop_rows(key)
        self.coming += [(self.delay(), span.key) for _, span in self.scheduler.rows_wanted()]
        for _, key in [item for item in self.coming if item[0] <= 0]:
            self.backend.hold_rows(key, np.array(self.images[key], dtype=np.float32)[:, None])
            self.scheduler.media.arrived(key)
            self.num_given += 1
        self.coming = [(steps - 1, key) for steps, key in self.coming if steps > 0]

    def _update(self, batch: Batch, largest: list[int]) -> list[TokenEvent]:
        ids = [s.request.request_id for s in self.scheduler.sequences(batch)]
        if batch.num_drafted:
            self.num_drafted += batch.num_drafted
            found = verified(batch, largest)
            found = [[None] if i in self.unusable else its for i, its in zip(ids, found, strict=True)]
            self.num_accepted += sum(len(token_ids) - 1 for token_ids in found)
            return [event for events in self.scheduler.update_drafted(batch, found) for event in events]
        rows = [None if i in self.unusable else token_id for i, token_id in zip(ids, largest, strict=True)]
        return self.scheduler.update(batch, rows)

    def run(self) -> dict[str, list[int]]:
        for _ in range(MAX_STEPS):
            if not self.scheduler.has_work:
                return self.tokens
            self.step()
        raise AssertionError("does not come to an end")

    def _take(self, event: TokenEvent) -> None:
        if event.token_id is not None:
            self.tokens[event.request_id].append(event.token_id)
        if event.finish_reason is not None:
            assert event.request_id not in self.reasons, "ended twice"
            self.reasons[event.request_id] = event.finish_reason
            self.num_preempted += self.scheduler.sequence(event.request_id).num_preempted
            self.num_paused += self.scheduler.sequence(event.request_id).num_paused


def verified(batch: Batch, largest: list[int]) -> list[list[int | None]]:
    """Of what each row of a batch would give: for each chunk what its draft really gave, and one more."""
    found: list[list[int | None]] = []
    rows = iter(largest)
    for chunk in batch.chunks:
        its = [next(rows) for _ in range(chunk.num_logits)]
        num_right = next((i for i, entry in enumerate(chunk.entries[1:]) if entry != its[i]), len(its) - 1)
        found.append([*its[: num_right + 1]])
    return found


def answer_alone(request: Request, context_size: int, kv_tokens: int) -> list[int]:
    """The slow, obvious reference: no scheduler, one request, one entry after the other, nothing cached."""
    backend = ScriptedBackend(scripted_info(context_size=context_size, kv_tokens=kv_tokens, num_slots=1))
    backend.adapters |= {key for key, _ in request.adapters}
    entries, tokens = list(request.prompt), list[int]()
    position = 0
    while True:
        row = backend.forward(Batch(position, (Chunk(0, position, (entries[position],), 1, request.adapters),)))[0]
        position += 1
        if position < len(entries):
            continue
        token_id = int(row.argmax())
        entries.append(token_id)
        tokens.append(token_id)
        is_spent = len(tokens) == request.sampling.max_tokens or len(entries) == min(context_size, kv_tokens)
        if token_id in backend.info.eog_token_ids or is_spent:
            return tokens


def random_requests(rng: random.Random, num: int, limit: int) -> list[Request]:
    """Prompts that often share beginnings, repeat or continue one another, in several lengths and priorities."""
    stems: Sequence[list[int]] = [[rng.randrange(250) for _ in range(rng.choice([3, 20, 45]))] for _ in range(3)]
    requests: list[Request] = []
    for index in range(num):
        stem = rng.choice(stems) if rng.random() < 0.7 else []
        tail = [rng.randrange(250) for _ in range(rng.randrange(1, 12))]
        if requests and rng.random() < 0.3:
            earlier = rng.choice(requests)
            stem, tail = list(earlier.prompt), tail if rng.random() < 0.5 else []
            if rng.random() < 0.5:
                stem += answer_alone(earlier, 512, 512)
        requests.append(
            make_request(
                f"r{index}",
                (stem + tail)[: limit - 1],
                max_tokens=rng.randrange(1, 30),
                priority=rng.choice([0, 0, 0, 1]),
                client_key=rng.choice("abc"),
                cache_prompt=rng.random() < 0.9,
            )
        )
    return requests
