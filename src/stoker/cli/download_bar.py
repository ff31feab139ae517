"""Draws downloads as bars on stderr; satisfies `models.Progress`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class DownloadBar:
    """One bar per transfer. Nothing is drawn before the first byte is due."""

    def __init__(self) -> None:
        self._bars: Progress | None = None
        self._task: TaskID | None = None

    def start(self, total_bytes: int | None, label: str) -> None:
        """See `models.Progress.start`."""
        if self._bars is None:
            self._bars = _new_bars()
            self._bars.start()
        if self._task is not None:
            self._bars.stop_task(self._task)
        self._task = self._bars.add_task(label, total=total_bytes)

    def advance(self, num_bytes: int) -> None:
        """See `models.Progress.advance`."""
        assert self._bars is not None
        assert self._task is not None
        self._bars.advance(self._task, num_bytes)

    def close(self) -> None:
        """See `models.Progress.close`."""
        if self._bars is not None:
            self._bars.stop()
        self._bars = self._task = None


def _new_bars() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(stderr=True))
