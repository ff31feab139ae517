"""Conversations that are evicted, restored and interrupted answer as a cold engine does, with every kind of model."""

from __future__ import annotations

import errno
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.backends.scripted import IM_END, ScriptedBackend, scripted_info
from stoker.cache.counters import TierCounters
from stoker.cache.directory import BlockDirectory, KeptModel
from stoker.cache.store import KVStore
from stoker.core.blocks import BLOCK_ENTRIES
from stoker.core.model_info import CacheTraits
from stoker.core.request import Request
from stoker.core.sequence import FinishReason
from stoker.core.tiers import KVBytes, TakeMemory, new_memory
from stoker.engine.transfers import Transfers
from stoker.errors import BackendError
from tests import harness
from tests.brief import every, examples
from tests.harness import ALL_TRAITS, Loop, answer_alone, make_request
from tests.waiting import BOUND_S

CONTEXT = 400


@dataclass
class Conversation:
    """Turns of one client: each prompt is the last one with its answer, and something new."""

    name: str
    history: list[int]
    num_turns: int = 0
    current: Request | None = None
    done: list[tuple[Request, list[int]]] = field(default_factory=list[tuple[Request, list[int]]])

    def next_request(self, rng: random.Random) -> Request | None:
        if self.done and rng.random() < 0.2:
            self.history = list(self.done[-1][0].prompt)  # the same question once more
        else:
            self._go_on(rng)
        if len(self.history) > CONTEXT - 60:
            return None
        self.num_turns += 1
        name = f"{self.name}.{self.num_turns}"
        shared = rng.random() < 0.95
        self.current = make_request(name, self.history, rng.randrange(1, 40), cache_prompt=shared)
        return self.current

    def _go_on(self, rng: random.Random) -> None:
        self.history += [rng.randrange(250) for _ in range(rng.randrange(1, 40))]
        if rng.random() < 0.3:  # the borders of blocks are where mistakes happen
            self.history += [7] * (-len(self.history) % BLOCK_ENTRIES)

    def hear(self, answer: list[int], *, has_failed: bool) -> None:
        assert self.current is not None
        if not has_failed:
            self.done.append((self.current, answer))
        self.history += [*answer, IM_END]
        self.current = None


def make_conversations(rng: random.Random, num: int) -> list[Conversation]:
    """Each begins with one of two system prompts; some of these have the same text behind them, at the same place."""
    length = rng.choice([10, 64, 64, 150])
    systems = [[rng.randrange(250) for _ in range(length)] for _ in range(2)]
    text = list(range(64))
    ends = [[IM_END], text]
    return [Conversation(f"c{index}", [*rng.choice(systems), *rng.choice(ends)]) for index in range(num)]


def make_loop(rng: random.Random, store: KVStore | None, traits: CacheTraits | None = None) -> Loop:
    info = scripted_info(
        context_size=CONTEXT,
        kv_tokens=rng.choice([CONTEXT, CONTEXT + 50, 900]),
        num_slots=rng.choice([2, 4, 8]),
        max_batch_tokens=rng.choice([16, 64, 256]),
        traits=replace(traits or rng.choice(ALL_TRAITS), can_export=True),
    )
    return Loop(info, max_running=min(rng.choice([1, 2, 4]), info.num_slots), store=store)


def talk(
    rng: random.Random, loop: Loop, conversations: list[Conversation], num_turns: int, *, may_fail: bool = False
) -> None:
    """Lets them talk until so many answers have come."""
    left = num_turns
    for _ in range(harness.MAX_STEPS):
        talking = {c.current.request_id: c for c in conversations if c.current is not None}
        for request_id in [request_id for request_id in talking if request_id in loop.reasons]:
            has_failed = loop.reasons[request_id] is FinishReason.ERROR
            assert may_fail or not has_failed
            talking[request_id].hear(loop.tokens[request_id], has_failed=has_failed)
            left -= 1
        idle = [conversation for conversation in conversations if conversation.current is None]
        if left > 0 and idle and (rng.random() < 0.3 or not loop.scheduler.has_work):
            request = rng.choice(idle).next_request(rng)
            if request is not None:
                loop.add(request)
            else:
                left -= 1
        if loop.scheduler.has_work:
            loop.step()
        elif left <= 0:
            return
    raise AssertionError("does not come to an end")


def check_answers(conversations: list[Conversation], kv_tokens: int) -> None:
    for conversation in conversations:
        for request, answer in conversation.done:
            assert answer == answer_alone(request, CONTEXT, kv_tokens), request.request_id


def check_conversations(seed: int, traits: CacheTraits | None = None) -> Loop:
    rng = random.Random(seed)
    loop = make_loop(rng, KVStore(rng.choice([30_000, 200_000, 10**7])), traits)
    if rng.random() < 0.5:  # exporting is slow: much is still to be exported when it has to leave
        loop.scheduler.tiering.observe_export(1, 1.0)
    conversations = make_conversations(rng, 5)
    talk(rng, loop, conversations, num_turns=14)
    check_answers(conversations, loop.info.kv_tokens)
    assert loop.transfers is not None
    assert loop.transfers.counters().failed_restores == 0, "bytes of other positions"
    return loop


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(0, 2**32))
def test_answers_do_not_depend_on_what_was_evicted_and_restored(seed: int) -> None:
    check_conversations(seed)


@pytest.mark.parametrize("traits", every(3, ALL_TRAITS))
def test_the_random_conversations_are_restored_with_every_kind_of_model(traits: CacheTraits) -> None:
    """The property above would be empty if nothing ever came back."""
    loops = [check_conversations(seed, traits) for seed in range(8)]
    assert sum(loop.transfers.counters().restored_tokens for loop in loops if loop.transfers is not None) > 100


class FaultyDisk(BlockDirectory):
    """A disk on which everything goes wrong now and then."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        super().__init__(root)
        self._rng = rng
        self.is_open = threading.Event()

    def write(self, fingerprint: bytes, key: bytes, state: KVBytes) -> int:
        if self._fails(0.05):
            raise OSError(errno.ENOSPC, "No space left on device")
        num_bytes = super().write(fingerprint, key, state)
        if self._fails(0.1):
            self._damage(fingerprint, key)
        return num_bytes

    def read(self, fingerprint: bytes, key: bytes) -> KVBytes:
        if self._fails(0.05):
            raise OSError(errno.EIO, "Input/output error")
        return super().read(fingerprint, key)

    def sweep(self) -> Iterator[tuple[Path, str]]:
        """Begins when the thread has looked what is there."""
        self.is_open.set()
        return super().sweep()

    def _fails(self, probability: float) -> bool:
        return self._rng.random() < probability

    def _damage(self, fingerprint: bytes, key: bytes) -> None:
        path = Path(self._path(fingerprint, key))
        content = bytearray(path.read_bytes())
        kind = self._rng.randrange(3)
        if kind == 0:
            content[self._rng.randrange(len(content))] ^= 1 << self._rng.randrange(8)
        elif kind == 1:
            del content[self._rng.randrange(len(content)) :]
        else:
            content = bytearray(b"something else entirely")
        path.write_bytes(content)


class Clock:
    """Jumps now and then, as for a reader that waits for a slow disk; never backwards."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._ahead_s = 0.0

    def __call__(self) -> float:
        if self._rng.random() < 0.01:
            self._ahead_s += self._rng.choice([0.5, 4.0, 400.0])
        return time.monotonic() + self._ahead_s


class FaultyPort:
    """A backend whose exports and imports are refused now and then."""

    def __init__(self, backend: ScriptedBackend, rng: random.Random) -> None:
        self._backend = backend
        self._rng = rng

    def export_kv(self, slot: int, start: int, end: int, take: TakeMemory = new_memory, **more: bool) -> KVBytes:
        self._refuse()
        return self._backend.export_kv(slot, start, end, take, **more)

    def import_kv(self, slot: int, start: int, end: int, state: KVBytes, **more: bool) -> None:
        self._refuse()
        self._backend.import_kv(slot, start, end, state, **more)

    def expect_kv(self, num_bytes: int) -> None:
        self._backend.expect_kv(num_bytes)

    def _refuse(self) -> None:
        if self._rng.random() < 0.05:
            raise BackendError("injected")


def check_lives(seed: int, root: Path) -> list[TierCounters]:
    """Several processes one after the other with one folder, each of which ends well or is killed."""
    rng = random.Random(seed)
    with pytest.MonkeyPatch.context() as monkeypatch:
        # Small blocks are written as large ones would be, and wait for a moment in which nobody computes, or do not.
        monkeypatch.setattr("stoker.cache.file_io.ALIGNED_FROM_BYTES", rng.choice([1, 64 * 1024]))
        monkeypatch.setattr("stoker.cache.disk._WRITE_WITHIN_S", rng.choice([0.0, 0.01, 2.0]))
        return _check_lives(rng, root)


def _check_lives(rng: random.Random, root: Path) -> list[TierCounters]:
    conversations = make_conversations(rng, 5)
    shape = rng.randrange(2**32)
    counters: list[TierCounters] = []
    for _ in range(3):
        disk = FaultyDisk(root, random.Random(rng.random()))
        store = KVStore(rng.choice([30_000, 10**7]), clock=Clock(random.Random(rng.random())))
        limit_bytes = rng.choice([60_000, 10**8])
        store.open_disk(disk, identify=lambda: b"1" * 32, model=KeptModel("m", "f"), limit_bytes=limit_bytes)
        with ExitStack() as on_failure:
            on_failure.callback(store.close)  # a thread that was left would be seen by the tests after this one
            assert disk.is_open.wait(BOUND_S)
            loop = make_loop(random.Random(shape), store)
            loop.transfers = Transfers(FaultyPort(loop.backend, random.Random(rng.random())), store, loop.scheduler)
            fails = random.Random(rng.random())
            loop.backend._before_forward = lambda batch, fails=fails: fail_rarely(fails)
            talk(rng, loop, conversations, num_turns=6, may_fail=True)
            check_answers(conversations, loop.info.kv_tokens)
            on_failure.pop_all()
        is_killed = rng.random() < 0.5
        assert end(store, is_killed=is_killed)
        counters.append(loop.transfers.counters())
        if is_killed:  # what was being written is half a file, or a temporary one
            for path in list(disk.folder.glob("*/*.kv"))[:1]:
                path.with_suffix(".tmp").write_bytes(path.read_bytes()[:50])
                path.write_bytes(path.read_bytes()[:-5])
    return counters


def end(store: KVStore, *, is_killed: bool) -> bool:
    """Whatever waits to be written is written now, as far as the disk can; or, of one that is killed, never."""
    if not is_killed:
        return store.close()
    assert store._disk is not None
    return store._disk.close(0.0)


def fail_rarely(rng: random.Random) -> None:
    if rng.random() < 0.01:
        raise BackendError("injected")


@settings(max_examples=examples(10), deadline=None)
@given(st.integers(0, 2**32))
def test_answers_do_not_depend_on_what_goes_wrong(seed: int) -> None:
    with tempfile.TemporaryDirectory() as root:
        check_lives(seed, Path(root))


@pytest.mark.slow
def test_the_random_lives_do_read_and_do_fail(tmp_path: Path) -> None:
    """The property above would be empty if nothing ever happened."""
    counters = [found for seed in range(6) for found in check_lives(seed, tmp_path / str(seed))]
    assert sum(found.disk_hit_tokens for found in counters) > 100
    assert sum(found.ram_hit_tokens for found in counters) > 100
    assert sum(found.disk_bad_files for found in counters) > 0
    assert sum(found.disk_failed_writes for found in counters) > 0
    assert sum(found.failed_exports for found in counters) > 0
    assert sum(found.failed_restores for found in counters) > 0
