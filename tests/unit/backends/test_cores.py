"""The machine is described by files, so any machine can be described."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.backends.cores import (
    AFFINITY,
    SHARED_CORES,
    cpus_to_stay_on,
    environment_of_sharers,
    memory_nodes,
    usable_cores,
)
from tests.waiting import BOUND_S


def make_machine(root: Path, siblings: dict[int, str], **limits: str) -> Path:
    for cpu, text in siblings.items():
        folder = root / "devices" / "system" / "cpu" / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(text + "\n")
    for name, text in limits.items():
        path = root / "fs" / "cgroup" / name.replace("__", "/").replace("_max", ".max").replace("cfs", "cpu.cfs")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


@pytest.fixture(autouse=True)
def eight_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)), raising=False)


SMT = {cpu: f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)}


def test_two_threads_of_one_core_count_once(tmp_path: Path) -> None:
    assert usable_cores(make_machine(tmp_path, SMT)) == 4


def test_only_cores_that_this_process_may_run_on_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 4, 1})
    assert usable_cores(make_machine(tmp_path, SMT)) == 2


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"cpu_max": "200000 100000"}, 2),
        ({"cpu_max": "150000 100000"}, 2),
        ({"cpu_max": "10000 100000"}, 1),
        ({"cpu_max": "max 100000"}, 4),
        ({"cpu__cfs_quota_us": "300000", "cpu__cfs_period_us": "100000"}, 3),
        ({"cpu__cfs_quota_us": "-1", "cpu__cfs_period_us": "100000"}, 4),
        ({"cpu_max": "nonsense"}, 4),
    ],
)
def test_a_container_gets_what_it_pays_for(tmp_path: Path, limits: dict[str, str], expected: int) -> None:
    assert usable_cores(make_machine(tmp_path, SMT, **limits)) == expected


def test_a_machine_that_says_nothing(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == 8


def test_threads_stay_only_if_they_fit_the_cores_and_somebody_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = make_machine(tmp_path, SMT)
    assert cpus_to_stay_on(4, machine) == []
    monkeypatch.setenv(AFFINITY, "1")
    assert cpus_to_stay_on(4, machine) == [0, 1, 2, 3]
    assert cpus_to_stay_on(3, machine) == []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3, 5, 7})
    assert cpus_to_stay_on(2, machine) == [3, 5]
    make_machine(tmp_path, {}, cpu_max="100000 100000")
    assert cpus_to_stay_on(2, machine) == [], "the container pays for one"


@pytest.mark.parametrize(
    ("has_memory", "cpus", "expected"),
    [
        ("0-1", set(range(8)), [0, 1]),
        ("0-1", {0, 3}, [0]),
        ("0-1", {4, 5}, [1]),
        ("1", set(range(8)), [1]),
        ("0,2", set(range(8)), [0]),
        ("", set(range(8)), []),
    ],
)
def test_memory_nodes_are_those_near_to_the_cpus_of_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_memory: str, cpus: set[int], expected: list[int]
) -> None:
    """Two sockets, and a third node that has memory only."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: cpus)
    folder = tmp_path / "devices" / "system" / "node"
    for node, listed in enumerate(("0-3", "4-6,7", "")):
        (folder / f"node{node}").mkdir(parents=True)
        (folder / f"node{node}" / "cpulist").write_text(f"{listed}\n")
    (folder / "has_memory").write_text(f"{has_memory}\n")
    assert memory_nodes(tmp_path) == expected
    assert memory_nodes(tmp_path / "nothing") == []


_MAPS = """
import mmap, re, sys
from pathlib import Path
from stoker import _native
was_set = _native.take_memory_in_turn([0])
memory = mmap.mmap(-1, 1 << 20)
memory.write(bytes(1 << 20))
print(was_set, "interleave" in Path("/proc/self/numa_maps").read_text(), _native.take_memory_in_turn([0]))
"""


@pytest.mark.skipif(not Path("/proc/self/numa_maps").exists(), reason="this kernel has no memory nodes")
def test_new_memory_comes_from_the_nodes_in_turn_unless_a_policy_was_set_before() -> None:
    found = subprocess.run([sys.executable, "-c", _MAPS], capture_output=True, text=True, check=True, timeout=BOUND_S)
    assert found.stdout.split() in (["True", "True", "False"], ["False", "False", "False"])  # not every container may


def test_all_processes_that_we_start_share_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SHARED_CORES, raising=False)
    first, second = environment_of_sharers(), environment_of_sharers()
    assert first == second
    if sys.platform == "linux":
        assert Path(first[SHARED_CORES]).exists()
    monkeypatch.setenv(SHARED_CORES, "/named/already")
    assert environment_of_sharers() == {}
