"""An engine with tiers: what it says of them, what it does while it waits for a disk, and how they are set up."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from stoker.backends.scripted import FULL_TRAITS, ScriptedBackend, scripted_info
from stoker.cache.directory import BlockDirectory, KeptModel
from stoker.cache.store import KVStore
from stoker.core.params import SamplingParams
from stoker.core.scheduler import SchedulerConfig
from stoker.core.tiers import KVBytes
from stoker.engine.config import EngineConfig
from stoker.engine.engine import Engine
from stoker.engine.protocol import Event, Failed, Output, Submit
from stoker.engine.question_messages import EraseSlots
from stoker.engine.tiers import open_kv_store
from stoker.engine.worker import EngineWorker
from stoker.errors import InvalidInput
from tests.harness import loaded
from tests.waiting import BOUND_S

PROMPT = [index % 250 for index in range(160)]
MIB = 2**20


class Disk(BlockDirectory):
    """Reads when it is let."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.may_read = threading.Event()
        self.is_reading = threading.Event()
        self.is_open = threading.Event()

    def read(self, fingerprint: bytes, key: bytes) -> KVBytes:
        self.is_reading.set()
        assert self.may_read.wait(BOUND_S)
        return super().read(fingerprint, key)

    def sweep(self):
        self.is_open.set()
        return super().sweep()


def build(disk: Disk | None = None) -> Engine:
    store = KVStore(10**7)
    if disk is not None:
        store.open_disk(disk, identify=lambda: b"1" * 32, model=KeptModel("m", "f"), limit_bytes=10**9)
        assert disk.is_open.wait(BOUND_S)
    backend = ScriptedBackend(scripted_info(kv_tokens=512))
    config = SchedulerConfig(max_running=2)
    return Engine(loaded(backend, kv_port=backend), config, kv_store=store)


def submit(request_id: str, prompt: list[int], **fields: object) -> Submit:
    return Submit(request_id, prompt, SamplingParams(temperature=0, max_tokens=4), **fields)  # type: ignore[arg-type]


def answer(engine: Engine, request_id: str, prompt: list[int]) -> Output:
    engine.add(engine.admit(submit(request_id, prompt)))
    events: list[Event] = []
    while engine.has_work:
        events += engine.step()
    last = events[-1]
    assert isinstance(last, Output)
    return last


def test_usage_says_exactly_what_was_not_computed_wherever_it_came_from() -> None:
    engine = build()
    assert answer(engine, "first", PROMPT).usage.cached_tokens == 0
    assert answer(engine, "resident", PROMPT).usage.cached_tokens == len(PROMPT) - 1
    answer(engine, "other", [(index * 7 + 1) % 250 for index in range(500)])
    assert answer(engine, "restored", PROMPT).usage.cached_tokens == 159
    beat = engine.stats()
    assert (beat.prompt_tokens, beat.cached_tokens, beat.pool_hit_tokens) == (980, 159 + 159, 159)
    assert beat.pool_evicted_tokens > 160
    tiers = beat.tiers
    assert (tiers.ram_hit_tokens, tiers.restored_tokens, tiers.ram_hit_blocks) == (159, 159, 5)
    assert tiers.exported_tokens >= 159
    assert tiers.restore_s > 0
    assert tiers.export_s > 0
    assert tiers.ram_bytes > 0
    engine.close()


def test_erasing_all_forgets_what_memory_holds_and_erasing_a_slot_does_not() -> None:
    engine = build()
    answer(engine, "first", PROMPT)
    answer(engine, "other", [(index * 7 + 1) % 250 for index in range(500)])
    num_blocks = engine.stats().tiers.ram_blocks
    assert num_blocks >= 5
    engine.answer(EraseSlots(0))
    assert engine.stats().tiers.ram_blocks == num_blocks
    engine.answer(EraseSlots())
    tiers = engine.stats().tiers
    assert (tiers.ram_blocks, tiers.ram_bytes) == (0, 0)
    assert answer(engine, "again", PROMPT).usage.cached_tokens == 0
    engine.close()


def test_everything_due_is_exported_before_an_engine_sleeps(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    engine = build(Disk(tmp_path))
    answer(engine, "first", PROMPT)
    assert engine.stats().tiers.ram_blocks == 5 + 2, "and where the prompt and the answer end"
    assert not engine.has_work
    engine.close()
    assert len(BlockDirectory(tmp_path).keys(b"1" * 32)) == 5 + 2
    assert not set(threading.enumerate()) - before


class Sink:
    def __init__(self) -> None:
        self.ended: dict[str, Event] = {}
        self._changed = threading.Condition()

    def __call__(self, events: list[Event]) -> None:
        with self._changed:
            for event in events:
                if isinstance(event, Failed) or (isinstance(event, Output) and event.finish_reason is not None):
                    self.ended[event.request_id] = event
            self._changed.notify_all()

    def wait_for(self, request_id: str) -> Event:
        with self._changed:
            assert self._changed.wait_for(lambda: request_id in self.ended, BOUND_S)
            return self.ended[request_id]


def test_while_one_waits_for_the_disk_others_are_answered_and_deadlines_go_on(tmp_path: Path) -> None:
    first = build(Disk(tmp_path))
    answer(first, "first", PROMPT)
    first.close()
    disk, sink = Disk(tmp_path), Sink()
    worker = EngineWorker(build(disk), sink)
    worker.submit(submit("waits", PROMPT))
    assert disk.is_reading.wait(BOUND_S)
    worker.submit(submit("hurried", [*PROMPT, 1], timeout_s=0.01))
    assert isinstance(sink.wait_for("hurried"), Failed)
    worker.submit(submit("other", [1, 2, 3]))
    assert isinstance(sink.wait_for("other"), Output)
    assert "waits" not in sink.ended
    disk.may_read.set()
    event = sink.wait_for("waits")
    assert isinstance(event, Output)
    assert event.usage.cached_tokens == 159
    assert worker.close()


def test_the_defaults_take_a_quarter_of_the_memory_and_no_disk() -> None:
    info = scripted_info()
    store = open_kv_store(EngineConfig(), info, [], 4000 * MIB)
    assert store is not None
    assert store.counters().ram_limit_bytes == 1000 * MIB
    assert not store.is_durable
    large = open_kv_store(EngineConfig(), info, [], 10**12)
    assert large is not None
    assert large.counters().ram_limit_bytes == 8192 * MIB


def test_a_disk_has_some_memory_in_front_of_it_in_any_case(tmp_path: Path) -> None:
    config = EngineConfig(cache_ram=0, kv_cache_dir=str(tmp_path), cache_disk=7)
    store = open_kv_store(config, scripted_info(), [], 10**9)
    assert store is not None
    counters = store.counters()
    assert (counters.ram_limit_bytes, counters.disk_limit_bytes) == (256 * MIB, 7 * MIB)
    assert store.close()


def test_no_tiers_are_no_tiers() -> None:
    assert open_kv_store(EngineConfig(cache_ram=0), scripted_info(), [], 10**9) is None
    cannot = replace(FULL_TRAITS, can_export=False)
    assert open_kv_store(EngineConfig(), scripted_info(traits=cannot), [], 10**9) is None


@pytest.mark.parametrize("fields", [{"cache_ram": -1}, {"cache_disk": 0}])
def test_sizes_out_of_range_are_refused(fields: dict[str, int]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(fields))):
        EngineConfig(**fields)  # type: ignore[arg-type]
