"""Writing waits until nobody computes, within bounds. Here a step that has begun never ends by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.cache.directory import BlockDirectory
from tests.unit.cache.test_kv_store import KEYS, OURS, Disk, Tiers
from tests.waiting import BOUND_S, wait_until

A_MOMENT_S = 0.02
STATE = b"x" * 100


@pytest.fixture(autouse=True)
def _long_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.cache.disk._STEP_S", 3600.0)
    monkeypatch.setattr("stoker.cache.disk._WRITE_WITHIN_S", 3600.0)


def busy(disk: Disk, ram_bytes: int = 10_000) -> Tiers:
    """Somebody has come, and computes."""
    store = Tiers(ram_bytes).open(disk)
    store.touch([KEYS[9]])
    store.note_step(is_busy=True)
    return store


def kept(root: Path) -> set[bytes]:
    return set(BlockDirectory(root).keys(OURS))


def wait_until_kept(root: Path, key: bytes) -> None:
    wait_until(lambda: kept(root) == {key})


def test_what_is_computed_is_written_when_nobody_computes(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    store = busy(disk)
    for key in KEYS[:3]:
        store.put(key, STATE)
    assert not disk.is_busy.wait(A_MOMENT_S)
    assert store.holds(KEYS[0])
    store.note_step(is_busy=False)
    assert disk.is_busy.wait(BOUND_S)
    assert store.close()
    assert kept(tmp_path) == set(KEYS[:3])


def test_who_begins_to_compute_is_not_disturbed_by_what_is_left(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    store = busy(disk)
    store.put(KEYS[0], STATE)
    disk.is_free.clear()
    store.note_step(is_busy=False)
    assert disk.is_busy.wait(BOUND_S)
    store.put(KEYS[1], STATE)
    store.note_step(is_busy=True)
    disk.is_busy.clear()
    disk.is_free.set()
    assert not disk.is_busy.wait(A_MOMENT_S)
    assert store.close()
    assert kept(tmp_path) == set(KEYS[:2]), "closing writes the rest"


def test_nothing_waits_longer_than_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.cache.disk._WRITE_WITHIN_S", A_MOMENT_S)
    disk = Disk(tmp_path)
    store = busy(disk)
    store.put(KEYS[0], STATE)
    assert disk.is_busy.wait(BOUND_S), "although the engine computes"
    assert store.close()


def test_no_more_waits_than_a_part_of_the_memory(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    store = busy(disk, ram_bytes=4 * 3 * len(STATE))
    for key in KEYS[:3]:
        store.put(key, STATE)
    assert not disk.is_busy.wait(A_MOMENT_S)
    store.put(KEYS[3], STATE)
    assert disk.is_busy.wait(BOUND_S)
    wait_until_kept(tmp_path, KEYS[0])
    assert store.counters().lost_blocks == 0
    assert store.close()
    assert kept(tmp_path) == set(KEYS[:4])


def test_a_full_disk_is_tried_again_after_its_pause_only(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.write_error = OSError("full")
    store = busy(disk)
    store.put(KEYS[0], STATE)
    store.note_step(is_busy=False)
    assert disk.has_failed.wait(BOUND_S)
    disk.has_failed.clear()
    store.put(KEYS[1], STATE)
    assert not disk.has_failed.wait(A_MOMENT_S)
    assert store.close()
    assert store.counters().disk_failed_writes == 1


def test_one_that_is_killed_has_lost_what_waited_and_nothing_else(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    store = Tiers().open(disk)
    store.put(KEYS[0], STATE)
    wait_until_kept(tmp_path, KEYS[0])
    store.touch([KEYS[0]])
    store.note_step(is_busy=True)
    store.put(KEYS[1], STATE)
    assert store._disk is not None
    assert store._disk.close(0.0), "as if it had been killed"
    assert kept(tmp_path) == {KEYS[0]}
