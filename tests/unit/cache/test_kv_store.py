"""The tiers with a real folder and a real thread. What waits for the thread waits for an event or for its end."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from stoker.cache.directory import BlockDirectory, KeptModel
from stoker.cache.store import KVStore
from stoker.core.tiers import KVBytes
from tests.waiting import BOUND_S

OURS, FOREIGN = b"1" * 32, b"2" * 32
KEYS = [bytes([index]) * 16 for index in range(10)]


class Disk(BlockDirectory):
    """A folder whose disk can be held up, and can fail."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.is_free = threading.Event()
        self.is_free.set()
        self.is_busy = threading.Event()
        self.write_error: OSError | None = None
        self.has_failed = threading.Event()
        self.is_open = threading.Event()
        self.reads: list[bytes] = []
        self.uses = threading.Semaphore(0)

    def write(self, fingerprint: bytes, key: bytes, state: KVBytes) -> int:
        self._pass()
        if self.write_error is not None:
            self.has_failed.set()
            raise self.write_error
        return super().write(fingerprint, key, state)

    def read(self, fingerprint: bytes, key: bytes) -> KVBytes:
        self._pass()
        self.reads.append(key)
        return super().read(fingerprint, key)

    def note_use(self, fingerprint: bytes, key: bytes, used_at: float) -> None:
        super().note_use(fingerprint, key, used_at)
        self.uses.release()

    def sweep(self) -> Iterator[tuple[Path, str]]:
        """Begins when the thread has looked what is there."""
        self.is_open.set()
        return super().sweep()

    def _pass(self) -> None:
        self.is_busy.set()
        assert self.is_free.wait(BOUND_S)


class Tiers(KVStore):
    """A store that can be waited for."""

    def __init__(self, ram_bytes: int = 10_000) -> None:
        super().__init__(ram_bytes)
        self.arrivals = threading.Semaphore(0)
        self.on_arrival(self.arrivals.release)

    def open(
        self,
        disk: BlockDirectory,
        *,
        limit_bytes: int = 10**9,
        read_ahead_bytes: int = 0,
        identify: Callable[[], bytes] = lambda: OURS,
    ) -> Tiers:
        """Returns when the thread knows what is there, if it is given a `Disk`."""
        self.open_disk(
            disk,
            identify=identify,
            model=KeptModel("m", "f"),
            limit_bytes=limit_bytes,
            read_ahead_bytes=read_ahead_bytes,
        )
        assert not isinstance(disk, Disk) or disk.is_open.wait(BOUND_S)
        return self

    def fetched(self, *keys: bytes) -> list[bool]:
        """Waits until these have been read, or not; says which are there."""
        self.fetch(keys)
        while self.is_coming(keys):
            assert self.arrivals.acquire(timeout=BOUND_S)
        return [self.is_ready(key) for key in keys]


def written(root: Path, *keys: bytes, state: bytes = b"x" * 100) -> None:
    """A first life that leaves these blocks on disk."""
    store = Tiers(10**6).open(BlockDirectory(root))
    for key in keys:
        store.put(key, state)
    assert store.close()


def test_a_model_that_is_closed_before_it_is_identified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("stoker.cache.store._CLOSE_S", 0.0)
    monkeypatch.setattr("stoker.cache.disk._END_S", 0.0)
    is_asked, may_end = threading.Event(), threading.Event()

    def identify() -> bytes:
        is_asked.set()
        assert may_end.wait(BOUND_S)
        return OURS

    store = Tiers().open(BlockDirectory(tmp_path), identify=identify)
    assert is_asked.wait(BOUND_S)
    store.put(KEYS[0], b"x" * 100)
    assert store.close()
    assert "not kept on disk" in caplog.text
    may_end.set()
    assert store._disk is not None
    store._disk._thread.join(BOUND_S)


def test_memory_alone_keeps_what_fits(tmp_path: Path) -> None:
    store = KVStore(250)
    for key in KEYS[:3]:
        store.put(key, b"x" * 100)
    assert [store.is_ready(key) for key in KEYS[:3]] == [False, True, True]
    assert [store.holds(key) for key in KEYS[:3]] == [False, True, True]
    assert store.take(KEYS[1], 32) == b"x" * 100
    counters = store.counters()
    assert (counters.ram_blocks, counters.ram_bytes, counters.ram_evicted_blocks) == (2, 200, 1)
    assert (counters.ram_hit_blocks, counters.ram_hit_tokens, counters.disk_hit_blocks) == (1, 32, 0)
    assert not store.is_durable
    assert store.close()


def test_a_block_outlives_the_process(tmp_path: Path) -> None:
    written(tmp_path, *KEYS[:2])
    store = Tiers().open(Disk(tmp_path))
    assert not store.is_ready(KEYS[1])
    assert store.fetched(*KEYS[:2]) == [True, True]
    assert bytes(store.take(KEYS[0], 32) or b"") == b"x" * 100
    assert store.counters().disk_hit_tokens == 32
    assert store.close()


def test_two_servers_may_share_a_folder(tmp_path: Path) -> None:
    first = Tiers().open(Disk(tmp_path))
    second = Tiers().open(Disk(tmp_path))
    for store in (first, second):
        store.put(KEYS[0], b"both")
    assert first.close()
    assert second.close()
    third = Tiers().open(Disk(tmp_path))
    assert third.fetched(KEYS[0]) == [True]
    assert third.close()


def test_a_folder_may_be_cleared_while_a_server_uses_it(tmp_path: Path) -> None:
    written(tmp_path, *KEYS[:2])
    store = Tiers().open(Disk(tmp_path))
    outside = BlockDirectory(tmp_path)
    assert outside.clear(OURS.hex()) > 0
    store.fetch(KEYS[:2])
    store.put(KEYS[2], b"afterwards")
    assert store.close()
    assert list(outside.keys(OURS)) == [KEYS[2]]
    assert outside.described(OURS.hex()).name == "m", "and it is known again whose it is"


def test_what_another_process_removed_is_not_there(tmp_path: Path) -> None:
    written(tmp_path, KEYS[0])
    store = Tiers().open(Disk(tmp_path))
    BlockDirectory(tmp_path).remove(OURS, KEYS[0])
    assert store.fetched(KEYS[0]) == [False]
    assert not store.holds(KEYS[0])
    assert store.close()


def test_kv_of_another_model_is_not_seen(tmp_path: Path) -> None:
    written(tmp_path, KEYS[0])
    store = Tiers().open(BlockDirectory(tmp_path), identify=lambda: FOREIGN)
    store.put(KEYS[1], b"mine")
    assert store.close()
    assert not store.holds(KEYS[0])


def test_a_slow_disk_holds_up_nobody(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.is_free.clear()
    store = Tiers(450).open(disk)
    store.put(KEYS[0], b"x" * 100)
    assert disk.is_busy.wait(BOUND_S)
    for key in KEYS[1:]:
        store.put(key, b"x" * 100)
        assert store.is_ready(key)
    assert store.counters().ram_blocks == 4
    assert store.counters().lost_blocks >= 5, "what has left memory cannot be written any more"
    disk.is_free.set()
    assert store.close()
    assert BlockDirectory(tmp_path).keys(OURS).keys() >= set(KEYS[-4:])


def test_nobody_waits_for_ever_for_what_a_slow_disk_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, KEYS[0])
    disk = Disk(tmp_path)
    disk.is_free.clear()
    store = Tiers().open(disk)
    store.fetch([KEYS[0]])
    assert disk.is_busy.wait(BOUND_S)
    assert store.is_coming([KEYS[0]])
    assert store._disk is not None
    clock = store._disk._clock
    monkeypatch.setattr(store._disk, "_clock", lambda: clock() + 3600)
    assert not store.is_coming([KEYS[0]])
    disk.is_free.set()
    assert store.close()


def test_a_full_disk_costs_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk(tmp_path)
    disk.write_error = OSError(errno.ENOSPC, "No space left on device")
    store = Tiers().open(disk)
    for key in KEYS:
        store.put(key, b"x" * 100)
    assert disk.has_failed.wait(BOUND_S)
    assert store.close()
    assert store.counters().disk_failed_writes == 1, "it pauses"
    assert [store.is_ready(key) for key in KEYS] == [True] * len(KEYS)
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "No space left" in warnings[0].getMessage()


def test_bad_files_cost_one_warning_and_are_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    written(tmp_path, *KEYS[:3])
    folder = tmp_path / "kv" / OURS.hex()
    for key in KEYS[:2]:
        path = folder / f"{key.hex()}.kv"
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    store = Tiers().open(Disk(tmp_path))
    assert store.fetched(*KEYS[:3]) == [False, False, True]
    assert store.counters().disk_bad_files == 2
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
    assert not (folder / f"{KEYS[0].hex()}.kv").exists()
    assert store.close()


def test_a_folder_that_cannot_be_used_costs_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "kv").write_text("a file")
    store = Tiers().open(BlockDirectory(tmp_path))
    store.put(KEYS[0], b"x")
    assert store.close()
    store.put(KEYS[1], b"x")
    assert store.is_ready(KEYS[1])
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_the_folder_keeps_its_size(tmp_path: Path) -> None:
    store = Tiers(10**6).open(BlockDirectory(tmp_path), limit_bytes=5000)
    for key in KEYS:
        store.put(key, b"x" * 1000)
    assert store.close()
    assert sum(BlockDirectory(tmp_path).keys(OURS).values()) <= 5000
    assert store.counters().disk_evicted_blocks >= 5


def test_what_turned_out_to_be_useless_is_forgotten(tmp_path: Path) -> None:
    store = KVStore(1000)
    store.put(KEYS[0], b"x")
    store.discard(KEYS[0])
    assert store.take(KEYS[0], 32) is None


def test_reading_has_a_price_once_it_was_paid(tmp_path: Path) -> None:
    written(tmp_path, *KEYS[:3], state=b"x" * 5000)
    store = Tiers(10**6).open(Disk(tmp_path))
    assert store.read_s(KEYS[:2]) == 0
    assert store.fetched(KEYS[0]) == [True]
    assert store.read_s(KEYS[1:3]) > store.read_s(KEYS[1:2]) > 0
    assert store.close()


def used_in_turn(root: Path, *keys: bytes, state: bytes = b"x" * 100) -> int:
    """A first life that has used the last of these last. Returns what a file takes."""
    written(root, *keys, state=state)
    directory = BlockDirectory(root)
    for age, key in enumerate(keys):
        os.utime(directory.folder / OURS.hex() / f"{key.hex()}.kv", (age, age))
    return directory.keys(OURS)[keys[0]]


def ahead(store: Tiers, num_blocks: int) -> list[bytes]:
    """Waits until so many blocks have been read ahead; returns those that are there."""
    assert store._disk is not None
    with store._disk._changed:
        deadline = time.monotonic() + BOUND_S
        while store.counters().disk_read_ahead_blocks < num_blocks and time.monotonic() < deadline:
            store._disk._changed.wait(0.001)
    return [key for key in KEYS if store.is_ready(key)]


def test_after_a_start_what_was_used_last_comes_into_memory_by_itself(tmp_path: Path) -> None:
    size = used_in_turn(tmp_path, *KEYS[:4])
    disk = Disk(tmp_path)
    store = Tiers().open(disk, read_ahead_bytes=3 * size)
    assert ahead(store, 3) == KEYS[1:4]
    assert disk.reads == [KEYS[3], KEYS[2], KEYS[1]]
    store.touch([KEYS[3]])
    assert store.take(KEYS[3], 32) is not None
    assert (store.counters().disk_hit_tokens, store.counters().disk_read_ahead_blocks) == (32, 3)
    assert disk.uses.acquire(timeout=BOUND_S)
    assert store.close()
    assert BlockDirectory(tmp_path).latest(OURS, size) == [KEYS[3]]


def test_reading_ahead_displaces_nothing(tmp_path: Path) -> None:
    used_in_turn(tmp_path, *KEYS[:4])
    disk = Disk(tmp_path)
    disk.is_free.clear()
    store = Tiers(300).open(disk, read_ahead_bytes=10**6)
    assert disk.is_busy.wait(BOUND_S)
    store.put(KEYS[9], b"y" * 150)
    disk.is_free.set()
    assert ahead(store, 1) == [KEYS[3], KEYS[9]]
    store.put(KEYS[8], b"y" * 150)
    assert [key for key in KEYS if store.is_ready(key)] == KEYS[8:], "and leaves for whoever comes"
    assert store.close()
    assert len(disk.reads) <= 2


def test_who_waits_goes_before_what_is_read_ahead(tmp_path: Path) -> None:
    used_in_turn(tmp_path, *KEYS[:6])
    disk = Disk(tmp_path)
    disk.is_free.clear()
    store = Tiers().open(disk, read_ahead_bytes=10**6)
    assert disk.is_busy.wait(BOUND_S)
    store.fetch(KEYS[:2])
    disk.is_free.set()
    assert ahead(store, 4) == KEYS[:6]
    assert disk.reads[:3] == [KEYS[5], KEYS[0], KEYS[1]]
    assert len(disk.reads) == 6, "what is there is not read again"
    assert store.close()


def test_a_server_that_ends_reads_nothing_more_ahead(tmp_path: Path) -> None:
    used_in_turn(tmp_path, *KEYS)
    disk = Disk(tmp_path)
    disk.is_free.clear()
    store = Tiers().open(disk, read_ahead_bytes=10**6)
    assert disk.is_busy.wait(BOUND_S)
    tier = store._disk
    assert tier is not None

    def let_go_of_the_disk() -> None:
        with tier._changed:
            assert tier._changed.wait_for(lambda: tier._closes_at is not None, BOUND_S)
        disk.is_free.set()

    thread = threading.Thread(target=let_go_of_the_disk)
    thread.start()
    assert store.close()
    thread.join()
    assert store.counters().disk_read_ahead_blocks < len(KEYS)


def times(root: Path) -> dict[bytes, float]:
    blocks = BlockDirectory(root).blocks(OURS.hex())
    return {bytes.fromhex(entry.path.stem): entry.used_at for entry in blocks}


def test_what_is_used_from_memory_only_stays_on_disk_too(tmp_path: Path) -> None:
    used_in_turn(tmp_path, *KEYS[:4])
    store = Tiers().open(Disk(tmp_path))
    store.put(KEYS[1], b"x" * 100)
    store.touch(KEYS[1:3])
    assert store.close()
    found = times(tmp_path)
    assert [found[KEYS[0]], found[KEYS[3]]] == [0, 3]
    assert min(found[KEYS[1]], found[KEYS[2]]) > 3


def test_of_what_is_used_together_the_end_leaves_first(tmp_path: Path) -> None:
    store = KVStore(300)
    for key in KEYS[:3]:
        store.put(key, b"x" * 100)
    store.touch(KEYS[:3])
    store.put(KEYS[3], b"x" * 100)
    assert [store.is_ready(key) for key in KEYS[:4]] == [True, True, False, True]


def test_a_use_counts_from_when_it_was_and_not_from_when_it_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used_in_turn(tmp_path, *KEYS[:2])
    store = Tiers().open(Disk(tmp_path))
    with monkeypatch.context() as earlier:
        earlier.setattr(time, "time", lambda: 1e9)
        store.touch(KEYS[:2])
    assert store.close()
    found = times(tmp_path)
    assert 1e9 <= found[KEYS[1]] < found[KEYS[0]] < 1e9 + 1


def test_a_use_is_noted_once_in_a_while(tmp_path: Path) -> None:
    used_in_turn(tmp_path, *KEYS[:2])
    disk = Disk(tmp_path)
    store = Tiers().open(disk)
    store.touch([KEYS[0]])
    store.note_step(is_busy=False)
    assert disk.uses.acquire(timeout=BOUND_S)
    store.touch([KEYS[0], KEYS[9]])
    store.touch([KEYS[1]])
    assert store.close()
    assert disk.uses.acquire(blocking=False)
    assert not disk.uses.acquire(blocking=False), "neither again, nor of what is not there"


def test_looking_after_the_folder_waits_until_nobody_computes(tmp_path: Path) -> None:
    used_in_turn(tmp_path, *KEYS[:2])
    disk = Disk(tmp_path)
    store = Tiers().open(disk)
    assert store._disk is not None
    store.touch([KEYS[0]])
    store.note_step(is_busy=True)
    assert not disk.uses.acquire(timeout=0.02)
    store.note_step(is_busy=False)
    assert disk.uses.acquire(timeout=BOUND_S)
    assert store.close()


def test_what_is_in_use_stays_although_there_was_no_time_to_note_it(tmp_path: Path) -> None:
    size = used_in_turn(tmp_path, *KEYS[:4])
    store = Tiers().open(Disk(tmp_path), limit_bytes=5 * size)
    store.touch([KEYS[0]])
    store.note_step(is_busy=True)
    store.put(KEYS[4], b"x" * 100)
    assert store.close()
    assert set(BlockDirectory(tmp_path).keys(OURS)) == {KEYS[0], *KEYS[2:5]}


def test_the_backend_is_told_what_is_read_ahead(tmp_path: Path) -> None:
    used_in_turn(tmp_path, *KEYS[:3])
    expected: list[int] = []
    disk = Disk(tmp_path)
    disk.is_free.clear()
    store = Tiers().open(disk, read_ahead_bytes=10**6)
    store.on_ahead(expected.append)
    disk.is_free.set()
    ahead(store, 3)
    assert store.close()
    assert expected == [100, 200, 300]


def test_a_folder_that_vanishes_is_written_again(tmp_path: Path) -> None:
    written(tmp_path, *KEYS[:2])
    disk = Disk(tmp_path)
    store = Tiers().open(disk)
    shutil.rmtree(disk.folder)
    store.touch(KEYS[:2])
    assert store.fetched(*KEYS[:2]) == [False, False]
    store.put(KEYS[2], b"afterwards")
    assert store.close()
    assert list(BlockDirectory(tmp_path).keys(OURS)) == [KEYS[2]]
    assert store.counters().disk_failed_writes == store.counters().disk_bad_files == 0


def test_a_disk_that_is_full_in_the_middle_keeps_what_it_has(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    store = Tiers().open(disk)
    store.put(KEYS[0], b"whole")
    while not disk.keys(OURS):
        assert disk.is_busy.wait(BOUND_S)
    disk.write_error = OSError(errno.ENOSPC, "No space left on device")
    store.put(KEYS[1], b"never written")
    assert disk.has_failed.wait(BOUND_S)
    assert store.fetched(KEYS[0]) == [True]
    assert store.close()
    assert not list(tmp_path.rglob("*.tmp"))
    assert bytes(disk.read(OURS, KEYS[0])) == b"whole"


def test_a_folder_that_nobody_has_changed_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, *KEYS[:2])
    folder = tmp_path / "kv" / OURS.hex()
    looks, ways = threading.Semaphore(0), list[str]()

    class Watched(Disk):
        def state(self, fingerprint: bytes) -> int | None:
            found = super().state(fingerprint)
            ways.append("state")
            looks.release()
            return found

        def keys(self, fingerprint: bytes, known: Mapping[bytes, int] = MappingProxyType({})) -> dict[bytes, int]:
            ways.append("keys")
            return super().keys(fingerprint, known)

    os.utime(folder, (0, 0))
    monkeypatch.setattr(BlockDirectory, "search_s", 0.01)
    store = Tiers().open(Watched(tmp_path))
    for _ in range(5):
        assert looks.acquire(timeout=BOUND_S)
    assert ways.count("keys") == 1
    assert store.holds(KEYS[0])
    BlockDirectory(tmp_path).write(OURS, KEYS[2], b"x")
    while not store.holds(KEYS[2]):
        assert looks.acquire(timeout=BOUND_S)
    assert store.close()
