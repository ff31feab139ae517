"""Available memory from made-up system files."""

from pathlib import Path

import pytest

from stoker.models.memory import available_memory

MIB = 1 << 20


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    directory = tmp_path / "proc"
    (directory / "self").mkdir(parents=True)
    (directory / "meminfo").write_text("MemTotal: 9999 kB\nMemAvailable: 1024000 kB\n")
    return directory


@pytest.fixture
def cgroup(tmp_path: Path) -> Path:
    directory = tmp_path / "cgroup"
    directory.mkdir()
    return directory


def limit_v2(directory: Path, limit: str, used: int, cached: int) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "memory.max").write_text(f"{limit}\n")
    (directory / "memory.current").write_text(f"{used}\n")
    (directory / "memory.stat").write_text(f"anon 5\ninactive_file {cached}\n")


def test_what_the_kernel_says(proc: Path, cgroup: Path) -> None:
    assert available_memory(proc, cgroup) == 1000 * MIB


def test_the_tightest_control_group_counts(proc: Path, cgroup: Path) -> None:
    (proc / "self" / "cgroup").write_text("0::/system/stoker\n")
    limit_v2(cgroup, "max", 10 * MIB, 0)
    limit_v2(cgroup / "system", str(500 * MIB), 300 * MIB, 50 * MIB)
    limit_v2(cgroup / "system" / "stoker", str(900 * MIB), 100 * MIB, 0)
    assert available_memory(proc, cgroup) == 250 * MIB


def test_version_1(proc: Path, cgroup: Path) -> None:
    (proc / "self" / "cgroup").write_text("9:cpu:/x\n4:memory:/box\nnonsense\n0::/\n")
    box = cgroup / "memory" / "box"
    box.mkdir(parents=True)
    (box / "memory.limit_in_bytes").write_text(str(100 * MIB))
    (box / "memory.usage_in_bytes").write_text(str(90 * MIB))
    (box / "memory.stat").write_text(f"total_inactive_file {20 * MIB}\n")
    assert available_memory(proc, cgroup) == 30 * MIB


def test_a_full_group_leaves_nothing(proc: Path, cgroup: Path) -> None:
    limit_v2(cgroup, str(10 * MIB), 20 * MIB, 0)
    assert available_memory(proc, cgroup) == 0


def test_without_system_files_all_memory_counts(tmp_path: Path) -> None:
    assert available_memory(tmp_path / "no", tmp_path / "nothing") > 100 * MIB


def test_on_this_machine() -> None:
    assert available_memory() > 0
