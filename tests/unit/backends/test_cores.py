"""The machine is described by files, so any machine can be described."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.backends.cores import usable_cores


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
