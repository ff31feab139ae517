"""Shows downloads as progress bars on stderr."""

from __future__ import annotations

from stoker.cli.later import rich


class DownloadBar:
    """Draws one bar per transfer. Nothing is drawn before the first `start`. Satisfies `models.Progress`."""

    def __init__(self) -> None:
        self._bars: rich.progress.Progress | None = None
        self._task: rich.progress.TaskID | None = None

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


def _new_bars() -> rich.progress.Progress:
    columns = (
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.DownloadColumn(),
        rich.progress.TransferSpeedColumn(),
        rich.progress.TimeRemainingColumn(),
    )
    return rich.progress.Progress(*columns, console=rich.console.Console(stderr=True))
