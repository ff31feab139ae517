"""On ONNX Runtime what `test_scheduler_invariances` says holds up to rounding: its kernels depend on shapes.

Real logits, compared with those of the same request alone. The tokens fed are those of the lonely answer, so that a
near tie that rounding decides otherwise cannot lead two answers apart.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker.backends.onnx import OnnxBackend
from stoker.cache.store import KVStore
from stoker.core.batch import Batch, Chunk, Truncate
from stoker.core.request import Request
from stoker.core.scheduler import Scheduler, SchedulerConfig
from stoker.core.sequence import FinishReason
from stoker.engine.transfers import Transfers
from tests import harness
from tests.brief import examples
from tests.harness import random_requests
from tests.onnx_models import TinyOnnx, write_graph
from tests.onnx_runs import distance, open_backend
from tests.reference.native_runs import Rows

CONTEXT = 80
LIMITS = {"fused": 1e-5, "plain": 1e-5, "fused, half": 5e-3, "takes rows": 1e-5}
MODELS = {
    "fused": TinyOnnx(window=20),
    "plain": TinyOnnx(attention="plain", window=20, rows="last"),
    "fused, half": TinyOnnx(kv_type="float16", rows="kept"),
    "takes rows": TinyOnnx(takes_rows=True),
}
SIZES = ((90, 4, 8), (140, 5, 3), (400, 8, 64), (400, 5, 1))
"""Of the pool, in slots, in entries of a batch."""


class Pool:
    """Backends of every size, made once, and the lonely answers, computed once."""

    def __init__(self, path: Path, limit: float) -> None:
        self.limit = limit
        self._lonely = open_backend(path, context_size=CONTEXT, kv_tokens=CONTEXT, num_slots=1)
        self._answers: dict[tuple[tuple[int, ...], int], tuple[list[int], list[Rows]]] = {}
        self.backends = [
            open_backend(path, context_size=CONTEXT, kv_tokens=kv_tokens, num_slots=slots, max_batch_tokens=batch)
            for kv_tokens, slots, batch in SIZES
        ]

    def alone(self, request: Request) -> tuple[list[int], list[Rows]]:
        """The answer, and the row of logits before each of its tokens."""
        count = request.sampling.max_tokens
        assert count is not None
        key = (tuple(request.prompt), count)
        if key not in self._answers:
            pairs = list(self._decode(list(request.prompt), count))
            self._answers[key] = ([token for token, _ in pairs], [row for _, row in pairs])
        return self._answers[key]

    def _decode(self, entries: list[int], count: int) -> Iterator[tuple[int, Rows]]:
        start = 0
        for _ in range(min(count, CONTEXT - len(entries))):
            row = self._lonely.forward(Batch(0, (Chunk(0, start, tuple(entries[start:]), 1),)))[0].copy()
            start = len(entries)
            entries.append(int(row.argmax()))
            yield entries[-1], row
        self._lonely.forward(Batch(0, (), (Truncate(0, 0),)))

    def close(self) -> None:
        for backend in (self._lonely, *self.backends):
            backend.close()


@pytest.fixture(scope="module", params=MODELS)
def pool(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    path = tmp_path_factory.mktemp("tiny") / "m.onnx"
    write_graph(path, MODELS[request.param])
    found = Pool(path, LIMITS[request.param])
    yield found
    found.close()


def check_answers(pool: Pool, backend: OnnxBackend, seed: int, store: KVStore | None = None) -> int:
    """Random requests arrive, run and are aborted at random; returns how many were preempted or restored."""
    rng = random.Random(seed)
    info = backend.info
    config = SchedulerConfig(max_running=min(4, info.num_slots, info.max_batch_tokens))
    scheduler = Scheduler(info, config, store)
    transfers = None if store is None else Transfers(backend, store, scheduler)
    requests = {r.request_id: r for r in random_requests(rng, 8, CONTEXT)}
    waiting, num_tokens = list(requests.values()), dict.fromkeys(requests, 0)
    num_disturbed = 0
    for _ in range(harness.MAX_STEPS):
        if not waiting and not scheduler.has_work:
            break
        while waiting and (rng.random() < 0.4 or not scheduler.has_work):
            scheduler.add(waiting.pop())
        if rng.random() < 0.02:
            scheduler.abort(rng.choice(list(requests)))
        if not scheduler.has_work:
            continue
        if transfers is not None:
            transfers.export()
        batch = scheduler.schedule()
        if batch is None:
            continue
        logits = backend.forward(batch)
        if transfers is not None:
            transfers.restore(batch)
        names = [sequence.request.request_id for sequence in scheduler.sequences(batch)]
        chosen: list[int | None] = []
        for name, row in zip(names, logits, strict=True):
            tokens, rows = pool.alone(requests[name])
            assert distance(row, rows[num_tokens[name]]) < pool.limit
            chosen.append(tokens[num_tokens[name]])
            num_tokens[name] += 1
        for event in scheduler.update(batch, chosen):
            if event.finish_reason not in (None, FinishReason.CANCELLED):
                num_disturbed += scheduler.sequence(event.request_id).num_preempted
        scheduler.check_integrity()
        assert backend._memory.num_touched <= info.kv_tokens + 64 * info.num_slots
    assert not scheduler.has_work
    backend.forward(Batch(0, (), tuple(Truncate(slot, 0) for slot in range(info.num_slots))))
    return num_disturbed


@settings(max_examples=examples(5), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_onnx_logits_depend_on_nothing_but_the_request(pool: Pool, seed: int) -> None:
    for backend in pool.backends:
        check_answers(pool, backend, seed)


@pytest.mark.slow
def test_the_random_onnx_runs_do_preempt(pool: Pool) -> None:
    """The property above would be empty if nothing ever happened."""
    assert sum(check_answers(pool, pool.backends[0], seed) for seed in range(6)) > 1


def test_what_comes_from_the_tiers_is_what_was_computed(pool: Pool) -> None:
    for seed in range(3):
        store = KVStore(1 << 24)
        check_answers(pool, pool.backends[0], seed, store)
        store.close()


def test_rows_of_different_requests_differ(pool: Pool) -> None:
    """The comparison above would be empty if every row were alike."""
    rows = [pool.alone(request)[1][0] for request in random_requests(random.Random(1), 6, CONTEXT)]
    distances = [distance(a, b) for a in rows for b in rows if not np.array_equal(a, b)]
    assert min(distances) > 100 * pool.limit
