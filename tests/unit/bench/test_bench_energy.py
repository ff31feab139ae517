"""Energy is read as the kernel counts it, and nothing is said where it counts none."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.bench.energy import EnergyMeter
from stoker.bench.process_usage import watching
from tests.waiting import run

ZONES = {
    "intel-rapl:0": ("package-0", 1_000_000, 9_999_999),
    "intel-rapl:0:0": ("core", 500_000, 9_999_999),
    "intel-rapl:0:1": ("dram", 2_000_000, 4_999_999),
    "intel-rapl:1": ("psys", 7_000_000, 9_999_999),
    "intel-rapl-mmio:0": ("package-0", 1_000_000, 9_999_999),
}


@pytest.fixture
def powercap(tmp_path: Path) -> Path:
    for zone, (name, energy_uj, range_uj) in ZONES.items():
        (tmp_path / zone).mkdir()
        (tmp_path / zone / "name").write_text(f"{name}\n")
        (tmp_path / zone / "energy_uj").write_text(f"{energy_uj}\n")
        (tmp_path / zone / "max_energy_range_uj").write_text(f"{range_uj}\n")
    return tmp_path


def test_packages_and_memory_count_once_each(powercap: Path) -> None:
    meter = EnergyMeter(powercap)
    for zone in ZONES:
        (powercap / zone / "energy_uj").write_text("4000000\n")
    assert meter.joules() == pytest.approx(3.0 + 2.0)


def test_a_counter_begins_again_at_its_end(powercap: Path) -> None:
    meter = EnergyMeter(powercap)
    (powercap / "intel-rapl:0:1" / "energy_uj").write_text("500000\n")
    assert meter.joules() == pytest.approx(3.5)


@pytest.mark.parametrize("lacks", ["", "name", "energy_uj"])
def test_without_counters_that_can_be_read_nothing_is_said(powercap: Path, lacks: str) -> None:
    if not lacks:
        assert EnergyMeter(powercap / "none").joules() is None
        return
    meter = EnergyMeter(powercap)
    (powercap / "intel-rapl:0" / lacks).unlink()
    assert EnergyMeter(powercap).joules() is None
    assert (meter.joules() is None) == (lacks == "energy_uj")


def test_energy_is_a_figure_of_what_was_watched(powercap: Path) -> None:
    async def main() -> float | None:
        async with watching(None, powercap=powercap) as usage:
            (powercap / "intel-rapl:0" / "energy_uj").write_text("3000000\n")
        return usage.resources.energy_j

    assert run(main()) == pytest.approx(2.0)
