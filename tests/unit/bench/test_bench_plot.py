"""The picture is drawn for every shape of results, and says what to install if it cannot be."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stoker.bench.plot import plot
from stoker.errors import InvalidInput
from tests.unit.bench.bench_samples import make_failed, make_figures, make_results, make_sample


@pytest.mark.slow
def test_curves_of_two_servers_and_a_scenario_with_phases(tmp_path: Path) -> None:
    samples = [make_sample(server, r, concurrency=c) for server in "ab" for c in (1, 2) for r in range(3)]
    samples += [make_sample("a", scenario="restart", phase=phase) for phase in ("first", "again")]
    samples += [make_sample("b", scenario="cold", figures=make_figures(make_failed()))]
    plot(make_results(*samples), tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_nothing_at_all_can_be_drawn(tmp_path: Path) -> None:
    plot(make_results(), tmp_path / "empty.svg")
    assert "<svg" in (tmp_path / "empty.svg").read_text()


@pytest.mark.parametrize("name", ["missing folder/a.png", "a.nonsense"])
def test_a_file_that_cannot_be_drawn_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be drawn"):
        plot(make_results(make_sample()), tmp_path / name)


def test_without_matplotlib_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InvalidInput, match=r"pip install 'stoker\[bench\]'"):
        plot(make_results(), tmp_path / "a.png")
