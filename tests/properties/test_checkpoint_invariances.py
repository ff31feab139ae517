"""What `test_native_invariances` says, where prompts go on at checkpoints: with windows or chunks of which only what is
seen again is kept, and with recurrent layers.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker.backends.native import NativeBackend, NativeOptions
from stoker.cache.store import KVStore
from stoker.core.batch import Batch, Chunk, Truncate
from stoker.core.request import Request
from stoker.core.scheduler import Scheduler, SchedulerConfig
from stoker.engine.transfers import Transfers
from stoker.models.gguf import read_gguf
from tests import harness
from tests.brief import examples
from tests.harness import crowded_clock, make_request
from tests.properties.test_native_invariances import Clumsy, update
from tests.reference.native_runs import open_native
from tests.tiny_models import TinyModel, write_tiny_model

CONTEXT = 320
MODEL = TinyModel(
    architecture="gemma3", type="Q8_0", num_layers=7, keys={"attention.sliding_window": 20}, has_head=False
)
"""Five of six layers see 20 positions, so that of each slot at most 113 are kept."""
MODELS = {
    "windows": MODEL,
    "chunks": TinyModel(
        architecture="llama4",
        type="Q8_0",
        num_experts=4,
        shared_size=32,
        num_layers=4,
        keys={"attention.sliding_window": 20},
        has_head=False,
    ),
    "short convolution": TinyModel(architecture="lfm2", type="Q8_0", num_layers=3, has_head=False),
    "no attention": TinyModel(architecture="mamba", type="Q8_0", has_head=False, keys={"ssm.dt_b_c_rms": True}),
    "delta net": TinyModel(architecture="qwen35", type="Q8_0", num_layers=3, has_head=False),
}


KV_TYPE = "q16"
"""The same bits on every CPU, so that the random runs are the same everywhere."""
END = 3
"""The token that ends a message."""


def open_windowed(path: Path, **sizes: Any) -> NativeBackend:
    with read_gguf(path) as file:
        options = NativeOptions(context_size=CONTEXT, threads=1, kv_type=KV_TYPE, **sizes)
        return NativeBackend([file], options, eog_token_ids=frozenset({END}))


class Pool:
    """Backends that keep checkpoints, and one that keeps everything and computes each request alone."""

    def __init__(self, path: Path) -> None:
        self._lonely = open_native(path, context_size=CONTEXT, kv_tokens=CONTEXT, num_slots=1, kv_type=KV_TYPE)
        self._answers: dict[tuple[tuple[int, ...], int], list[bytes]] = {}
        self.backends = [
            open_windowed(
                path,
                kv_tokens=kv_tokens,
                window_tokens=running * 113 + batch + retained,
                num_slots=slots,
                max_batch_tokens=batch,
            )
            for kv_tokens, slots, batch, running, retained in (
                (400, 4, 64, 2, 0),
                (900, 8, 40, 3, 200),
                (340, 3, 7, 1, 20),
            )
        ]

    def alone(self, request: Request) -> list[bytes]:
        """The row of logits before each token of the answer."""
        count = request.sampling.max_tokens
        assert count is not None
        key = tuple(request.prompt), count
        if key not in self._answers:
            self._answers[key] = list(self._decode(list(request.prompt), count))
        return self._answers[key]

    def _decode(self, entries: list[int], count: int) -> Iterator[bytes]:
        start = 0
        for _ in range(min(count, CONTEXT - len(entries))):
            row = self._lonely.forward(Batch(0, (Chunk(0, start, tuple(entries[start:]), 1),)))[0]
            yield row.tobytes()
            start = len(entries)
            entries.append(int(row.argmax()))
        self._lonely.forward(Batch(0, (), (Truncate(0, 0),)))

    def close(self) -> None:
        for backend in (self._lonely, *self.backends):
            backend.close()


@pytest.fixture(scope="module", params=list(MODELS))
def pool(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Pool]:
    found = Pool(write_tiny_model(tmp_path_factory.mktemp("tiny") / "m.gguf", MODELS[request.param]))
    yield found
    found.close()


def conversations(rng: random.Random, num: int) -> list[Request]:
    """Prompts that share system prompts, go on with earlier prompts, or part from them at or inside messages."""
    systems = [[*(rng.randrange(200) for _ in range(rng.choice([40, 70]))), END] for _ in range(2)]
    found: list[Request] = []
    for index in range(num):
        prompt = list(rng.choice(systems))
        if found and rng.random() < 0.5:
            earlier = list(rng.choice(found).prompt)
            prompt = earlier if rng.random() < 0.7 else earlier[: rng.randrange(1, len(earlier))]
        prompt += [rng.randrange(200) for _ in range(rng.randrange(1, 60))] + [END] * (rng.random() < 0.7)
        priority, is_shared = rng.choice([0, 0, 1]), rng.random() < 0.9
        found.append(
            make_request(
                f"r{index}",
                prompt[:280],
                rng.randrange(1, 40),
                priority=priority,
                cache_prompt=is_shared,
                client_key="a",
            )
        )
    return found


def check_answers(pool: Pool, backend: NativeBackend, seed: int) -> Scheduler:
    """Requests arrive, run, are paused and aborted at random; every row of logits must be the lonely one's."""
    rng, info = random.Random(seed), backend.info
    windows = info.windows
    running = 2 if windows is None else max(1, (windows.capacity - info.max_batch_tokens) // windows.reach)
    store = KVStore(10**6) if rng.random() < 0.5 else None
    scheduler = Scheduler(info, SchedulerConfig(max_running=min(running, info.num_slots)), store)
    scheduler.speculation = Clumsy(rng, info.max_batch_tokens)
    transfers = None if store is None else Transfers(backend, store, scheduler, crowded_clock(rng))
    requests = {request.request_id: request for request in conversations(rng, 10)}
    waiting, rows = list(reversed(requests.values())), {name: list[bytes]() for name in requests}
    for _ in range(harness.MAX_STEPS):
        if not waiting and not scheduler.has_work and not scheduler.num_paused:
            break
        while waiting and (rng.random() < 0.2 or not scheduler.has_work):
            scheduler.add(waiting.pop())
        chosen = rng.choice(list(requests))
        if rng.random() < 0.05:
            rng.choice([scheduler.abort, scheduler.pause])(chosen)
        if rng.random() < 0.2 or not scheduler.has_work:
            scheduler.resume(chosen)
        if transfers is not None:
            transfers.export()
        batch = scheduler.schedule() if scheduler.has_work else None
        if batch is None:
            continue
        logits = backend.forward(batch)
        if transfers is not None:
            transfers.restore(batch)
        for event, row in update(scheduler, batch, logits):
            rows[event.request_id].append(row)
            assert rows[event.request_id] == pool.alone(requests[event.request_id])[: len(rows[event.request_id])]
        scheduler.observe(batch, 0.01)  # as if a draft cost nothing
        scheduler.check_integrity()
        backend.check_integrity()
    assert not scheduler.has_work
    backend.forward(Batch(0, (), tuple(Truncate(slot, 0) for slot in range(info.num_slots))))
    assert backend.num_used_pages == 0
    return scheduler


@settings(max_examples=examples(8), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_logits_depend_on_nothing_but_the_request(pool: Pool, seed: int) -> None:
    for backend in pool.backends:
        check_answers(pool, backend, seed)


@pytest.mark.slow
def test_the_random_runs_do_reuse_preempt_and_draft(pool: Pool) -> None:
    """The property above would be empty if nothing ever happened."""
    runs = [check_answers(pool, backend, seed) for seed in range(4) for backend in pool.backends]
    assert sum(scheduler.num_resident_tokens for scheduler in runs) > 500
    assert sum(scheduler.num_preemptions for scheduler in runs) > 3
    assert sum(scheduler.speculation.num_drafted for scheduler in runs) > 3
    assert sum(scheduler.kv.num_evicted_slots for scheduler in runs) > 20
