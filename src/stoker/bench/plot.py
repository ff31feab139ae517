"""Plots results: for each scenario, curves over phases and concurrency. It needs matplotlib (extra `bench`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stoker.bench.results import Results
from stoker.bench.summary import FIGURE_KINDS, FigureKind, Spread, Summary, summaries
from stoker.errors import InvalidInput

_PANELS = (("output",), ("prompt",), ("TTFT p50", "TTFT p95"), ("ITL p50", "ITL p99"))
"""Labels of the figures in each panel; the second figure of a panel is dashed."""
_INCHES = (5.0, 3.6)


def plot(results: Results, path: Path) -> None:
    """Draws medians with their spread as a band, one row of panels per scenario. The file's suffix sets its format.

    Raises:
        InvalidInput: matplotlib is not installed, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise InvalidInput("--plot needs matplotlib: pip install 'stoker[bench]'", parameter="plot") from None
    found = summaries(results.samples)
    scenarios = list(dict.fromkeys(summary.point.scenario for summary in found))
    size = (_INCHES[0] * len(_PANELS), _INCHES[1] * max(1, len(scenarios)))
    figure: Any = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(max(1, len(scenarios)), len(_PANELS), squeeze=False)
    for row, scenario in zip(grid, scenarios, strict=False):
        own = [summary for summary in found if summary.point.scenario == scenario]
        for axes, labels in zip(row, _PANELS, strict=True):
            _panel(axes, own, [kind for kind in FIGURE_KINDS if kind.label in labels])
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path} cannot be drawn: {error}", parameter="plot") from error


def _panel(axes: Any, own: Sequence[Summary], kinds: Sequence[FigureKind]) -> None:
    positions = {place: index for index, place in enumerate(dict.fromkeys(_place(summary) for summary in own))}
    for server_index, server in enumerate(dict.fromkeys(summary.server for summary in own)):
        for kind, style in zip(kinds, ("-", "--"), strict=False):
            points = [
                (positions[_place(summary)], spread)
                for summary in own
                if summary.server == server and (spread := summary.spread(kind)) is not None
            ]
            _line(axes, points, f"{server} {kind.label}", f"C{server_index}", style)
    axes.set_xticks(list(positions.values()), list(positions))
    axes.set_title(f"{own[0].point.scenario}: {' and '.join(kind.label for kind in kinds)}")
    axes.set_ylabel(kinds[0].unit)
    axes.set_xlabel("requests at a time")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(fontsize="small")


def _line(axes: Any, points: Sequence[tuple[int, Spread]], label: str, color: str, style: str) -> None:
    if not points:
        return
    x = [position for position, _ in points]
    axes.plot(x, [spread.median for _, spread in points], style, color=color, marker="o", label=label)
    axes.fill_between(x, [s.low for _, s in points], [s.high for _, s in points], color=color, alpha=0.15)


def _place(summary: Summary) -> str:
    phase, concurrency = summary.point.phase, summary.point.concurrency
    return f"{phase}\n{concurrency}" if phase else f"{concurrency}"
