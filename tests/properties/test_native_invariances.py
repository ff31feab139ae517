"""On the native executor what `test_scheduler_invariances` says holds to the bit: real logits, compared with ==."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker.backends.base import Logits
from stoker.backends.native import NativeBackend
from stoker.backends.native.kv_types import KVType
from stoker.core import sequence as core
from stoker.core.batch import AdapterSet, Batch, Chunk, Truncate
from stoker.core.request import Request
from stoker.core.scheduler import Scheduler, SchedulerConfig
from stoker.core.sequence import FinishReason, TokenEvent
from stoker.core.speculation import Speculation
from tests import harness
from tests.adapter_files import random_pairs, write_adapter
from tests.brief import examples
from tests.harness import random_requests, verified
from tests.reference.native_runs import open_native
from tests.tiny_models import TinyModel, write_tiny_model

CONTEXT = 80
POOLS = (90, 140, 400)
MODEL = TinyModel(
    architecture="gemma3", type="Q8_0", num_layers=2, keys={"attention.sliding_window": 20}, has_head=False
)
"""A window that most sequences outgrow, and int8 products, so that nothing is exact by luck."""
SETS: list[AdapterSet] = [(), (), (("0", 1.0),), (("1", 0.5),), (("1", 1.0), ("0", -1.0))]


class Pool:
    """Backends of every size, made once, and the lonely answers, computed once."""

    def __init__(self, path: Path, kv_type: str | None, sets: Sequence[AdapterSet]) -> None:
        self.sets = sets
        self._lonely = open_native(path, context_size=CONTEXT, kv_tokens=CONTEXT, num_slots=1, kv_type=kv_type)
        self._answers: dict[tuple[tuple[int, ...], int, AdapterSet], list[bytes]] = {}
        self.backends = [
            open_native(
                path,
                context_size=CONTEXT,
                kv_tokens=kv_tokens,
                num_slots=slots,
                max_batch_tokens=batch,
                kv_type=kv_type,
            )
            for kv_tokens, slots, batch in ((90, 4, 8), (140, 5, 3), (400, 8, 64), (400, 5, 1))
        ]
        for number in range(2 if len(sets) > 1 else 0):
            pairs = random_pairs(path, number, rank=3 + 9 * number)
            adapter = write_adapter(path.with_name(f"{number}.gguf"), pairs, architecture=MODEL.architecture)
            for backend in (self._lonely, *self.backends):
                backend.load_adapter(str(number), adapter)

    def alone(self, request: Request) -> list[bytes]:
        """The row of logits before each token of the answer: the prompt at once, then one token after the other."""
        count = request.sampling.max_tokens
        assert count is not None
        key = (tuple(request.prompt), count, request.adapters)
        if key not in self._answers:
            self._answers[key] = list(self._decode(list(request.prompt), count, request.adapters))
        return self._answers[key]

    def _decode(self, entries: list[int], count: int, adapters: AdapterSet) -> Iterator[bytes]:
        start = 0
        for _ in range(min(count, CONTEXT - len(entries))):
            row = self._lonely.forward(Batch(0, (Chunk(0, start, tuple(entries[start:]), 1, adapters),)))[0]
            yield row.tobytes()
            start = len(entries)
            entries.append(int(row.argmax()))
        self._lonely.forward(Batch(0, (), (Truncate(0, 0),)))

    def close(self) -> None:
        for backend in (self._lonely, *self.backends):
            backend.close()


@pytest.fixture(scope="module", params=get_args(KVType))
def pool(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Pool]:
    found = Pool(write_tiny_model(tmp_path_factory.mktemp("tiny") / "m.gguf", MODEL), request.param, SETS)
    yield found
    found.close()


class Clumsy(Speculation):
    """Puts something else into every other draft: these models only ever repeat themselves."""

    def __init__(self, rng: random.Random, max_entries: int) -> None:
        super().__init__(rng.choice([0, 15]), max_entries)
        self._rng = rng

    def drafts(self, sequences: Sequence[core.Sequence], room: int) -> list[list[int]] | None:
        found = super().drafts(sequences, room)
        for draft in filter(None, found or []):
            if self._rng.random() < 0.5:
                draft[self._rng.randrange(len(draft))] = self._rng.randrange(250)
        return found


def check_answers(pool: Pool, backend: NativeBackend, seed: int) -> tuple[int, Scheduler]:
    """Random requests arrive, run and are aborted at random; returns how often one was preempted."""
    rng = random.Random(seed)
    info = backend.info
    scheduler = Scheduler(info, SchedulerConfig(max_running=min(4, info.num_slots, info.max_batch_tokens)))
    scheduler.speculation = Clumsy(rng, info.max_batch_tokens)
    found = [replace(request, adapters=rng.choice(pool.sets)) for request in random_requests(rng, 8, CONTEXT)]
    requests = {request.request_id: request for request in found}
    waiting, rows = list(requests.values()), {name: list[bytes]() for name in requests}
    num_preempted = 0
    for _ in range(harness.MAX_STEPS):
        if not waiting and not scheduler.has_work:
            break
        while waiting and (rng.random() < 0.4 or not scheduler.has_work):
            scheduler.add(waiting.pop())
        if rng.random() < 0.02:
            scheduler.abort(rng.choice(list(requests)))
        if not scheduler.has_work:
            continue
        batch = scheduler.schedule()
        assert batch is not None
        logits = backend.forward(batch)
        for event, row in update(scheduler, batch, logits):
            rows[event.request_id].append(row)
            if event.finish_reason not in (None, FinishReason.CANCELLED):
                assert rows[event.request_id] == pool.alone(requests[event.request_id])
                num_preempted += scheduler.sequence(event.request_id).num_preempted
        scheduler.observe(batch, 0.01)  # as if a draft cost nothing
        scheduler.check_integrity()
    assert not scheduler.has_work
    for name, request in requests.items():
        assert rows[name] == pool.alone(request)[: len(rows[name])]
    backend.forward(Batch(0, (), tuple(Truncate(slot, 0) for slot in range(info.num_slots))))
    assert backend.num_used_pages == 0
    return num_preempted, scheduler


def update(scheduler: Scheduler, batch: Batch, logits: Logits) -> Iterator[tuple[TokenEvent, bytes]]:
    """Every token, and the row that gave it."""
    largest = [int(row.argmax()) for row in logits]
    if not batch.num_drafted:
        yield from zip(scheduler.update(batch, largest), [row.tobytes() for row in logits], strict=True)
        return
    first = 0
    for chunk, events in zip(batch.chunks, scheduler.update_drafted(batch, verified(batch, largest)), strict=True):
        yield from zip(events, [row.tobytes() for row in logits[first:]], strict=False)
        first += chunk.num_logits


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_logits_depend_on_nothing_but_the_request(pool: Pool, seed: int) -> None:
    for backend in pool.backends:
        check_answers(pool, backend, seed)


@pytest.mark.slow
def test_the_random_runs_do_preempt_and_draft(pool: Pool) -> None:
    """The property above would be empty if nothing ever happened."""
    runs = [check_answers(pool, pool.backends[index], seed) for seed in range(12) for index in (0, 2)]
    assert sum(num_preempted for num_preempted, _ in runs) > 3
    drafts = [scheduler.speculation for _, scheduler in runs]
    assert sum(draft.num_accepted for draft in drafts) > 20
    assert sum(draft.num_drafted - draft.num_accepted for draft in drafts) > 20
