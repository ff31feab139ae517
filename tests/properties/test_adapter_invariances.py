"""The answer under an adapter depends on it and the request alone: not on who else runs, nor under which adapters."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.backends.scripted import scripted_info
from stoker.cache.directory import KeptModel
from stoker.cache.store import KVStore
from stoker.core import tiering
from stoker.core.adapter_rotation import AdapterRotation
from stoker.core.batch import AdapterSet
from stoker.core.request import Request
from stoker.core.scheduler import Scheduler
from stoker.core.sequence import FinishReason, Sequence
from tests import harness
from tests.brief import examples
from tests.harness import ALL_TRAITS, Loop, answer_alone, make_request, random_requests
from tests.unit.engine.writing_child import Folder
from tests.waiting import BOUND_S

CONTEXT = 120
SETS: list[AdapterSet] = [(), (("poet", 1.0),), (("poet", 0.5),), (("clerk", 1.0), ("poet", 1.0))]
SYSTEM = list(range(64))


def make_loop(rng: random.Random) -> Loop:
    info = scripted_info(
        context_size=CONTEXT,
        kv_tokens=rng.choice([120, 150, 400]),
        num_slots=rng.choice([1, 4, 8]),
        max_batch_tokens=rng.choice([3, 8, 64, 256]),
        traits=replace(rng.choice(ALL_TRAITS), can_export=True),
        mixes_adapters=rng.random() < 0.2,
    )
    store = KVStore(rng.choice([20_000, 10**6])) if rng.random() < 0.7 else None
    return Loop(info, max_running=min(rng.choice([1, 2, 4]), info.num_slots, info.max_batch_tokens), store=store)


def adapted_requests(rng: random.Random, limit: int) -> list[Request]:
    """Requests whose prompts share beginnings, each under a set of its own choice."""
    requests = random_requests(rng, 10, limit)
    return [
        replace(
            request,
            adapters=rng.choice(SETS),
            prompt=(*SYSTEM[: limit // 3], *request.prompt)[: limit - 1] if rng.random() < 0.6 else request.prompt,
        )
        for request in requests
    ]


def check_answers(seed: int) -> Loop:
    rng = random.Random(seed)
    loop = make_loop(rng)
    requests = adapted_requests(rng, min(CONTEXT, loop.info.kv_tokens))
    waiting = list(requests)
    for _ in range(harness.MAX_STEPS):
        if not waiting and not loop.scheduler.has_work:
            break
        while waiting and (rng.random() < 0.4 or not loop.scheduler.has_work):
            loop.add(waiting.pop())
        if rng.random() < 0.02:
            loop.abort(rng.choice(requests).request_id)
        if loop.scheduler.has_work:
            loop.step()
    assert not loop.scheduler.has_work, "does not come to an end"
    for request in requests:
        alone, got = answer_alone(request, CONTEXT, loop.info.kv_tokens), loop.tokens[request.request_id]
        is_cut = loop.reasons[request.request_id] is FinishReason.CANCELLED
        assert got == (alone[: len(got)] if is_cut else alone), request.request_id
    return loop


def check_many(num_seeds: int) -> None:
    for seed in range(num_seeds):
        check_answers(seed)


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32))
def test_every_answer_is_the_one_that_its_adapters_give_alone(seed: int) -> None:
    check_answers(seed)


def test_the_adapters_do_change_the_answers() -> None:
    """The property above would be empty otherwise."""
    answers = {tuple(answer_alone(make_request("r", SYSTEM, adapters=adapters), CONTEXT, 200)) for adapters in SETS}
    assert len(answers) == len(SETS)


def live(root: Path, sets: list[AdapterSet], question: int) -> int:
    """One process: asks under each set, keeps what was computed, and says how many tokens it restored."""
    store, folder = KVStore(10**6), Folder(root)
    store.open_disk(folder, identify=lambda: b"w" * 32, model=KeptModel("m", "f"), limit_bytes=10**7)
    assert folder.is_open.wait(BOUND_S)
    loop = Loop(scripted_info(context_size=CONTEXT, kv_tokens=CONTEXT), store=store)
    assert loop.transfers is not None
    for index, adapters in enumerate(sets):
        request = make_request(f"r{index}", [*SYSTEM, question], 4, adapters=adapters)
        loop.add(request)
        loop.run()
        assert loop.tokens[request.request_id] == answer_alone(request, CONTEXT, CONTEXT)
    while loop.transfers.export():
        pass
    assert store.close()
    return loop.transfers.counters().restored_tokens


def test_kv_on_disk_is_found_by_the_same_adapters_only(tmp_path: Path) -> None:
    assert live(tmp_path, SETS[:3], 100) == 0
    assert live(tmp_path, SETS[1:], 101) == 2 * len(SYSTEM), "two of the sets are known from the first life"


Patch = Callable[[pytest.MonkeyPatch], None]


def _ignores_adapters_in_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    def key(sequence: Sequence) -> object:
        return None if sequence.request.cache_prompt else sequence.request.request_id

    monkeypatch.setattr(Sequence, "cache_key", property(key))


def _ignores_scales_in_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    def key(sequence: Sequence) -> object:
        private = None if sequence.request.cache_prompt else sequence.request.request_id
        return (private, tuple(name for name, _ in sequence.request.adapters))

    monkeypatch.setattr(Sequence, "cache_key", property(key))


def _ignores_adapters_in_the_tiers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiering, "root_key", lambda adapters: b"root")


def _forgets_the_adapters_of_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Scheduler.schedule

    def schedule(self: Scheduler):
        batch = original(self)
        return batch and batch._replace(chunks=tuple(chunk._replace(adapters=()) for chunk in batch.chunks))

    monkeypatch.setattr(Scheduler, "schedule", schedule)


def _mixes_adapters_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AdapterRotation, "lane_of", lambda self, sequence: ())


@pytest.mark.parametrize(
    "bug",
    [
        _ignores_adapters_in_the_pool,
        _ignores_scales_in_the_pool,
        _ignores_adapters_in_the_tiers,
        _forgets_the_adapters_of_a_chunk,
        _mixes_adapters_in_one_step,
    ],
)
def test_a_planted_bug_is_noticed(monkeypatch: pytest.MonkeyPatch, bug: Patch) -> None:
    bug(monkeypatch)
    with pytest.raises(AssertionError):
        check_many(60)
