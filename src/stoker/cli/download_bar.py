"""Shows downloads on stderr: as progress bars on a terminal, else as a line every ten seconds."""

from __future__ import annotations

import time
from collections.abc import Callable

from stoker.cli.later import rich
from stoker.cli.report import say
from stoker.cli.table import size

_LINE_EVERY_S = 10.0


class DownloadBar:
    """Draws one bar per transfer. Nothing is drawn before the first `start`. Satisfies `models.Progress`.

    Where stderr is no terminal, as in the log of a service, a bar is drawn only when all transfers have ended. Until
    then, a transfer gets a line every ten seconds.

    Args:
        clock: current time, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._line_at = 0.0
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
        self._line_at = self._clock() + _LINE_EVERY_S

    def advance(self, num_bytes: int) -> None:
        """See `models.Progress.advance`."""
        assert self._bars is not None
        assert self._task is not None
        self._bars.advance(self._task, num_bytes)
        if not self._bars.console.is_terminal and self._clock() >= self._line_at:
            self._line_at = self._clock() + _LINE_EVERY_S
            _say_line(self._bars.tasks[-1])

    def close(self) -> None:
        """See `models.Progress.close`."""
        if self._bars is not None:
            self._bars.stop()
        self._bars = self._task = None


def _say_line(task: rich.progress.Task) -> None:
    total = "" if task.total is None else f" of {size(int(task.total))}"
    say(f"{task.description}: {size(int(task.completed))}{total}")


def _new_bars() -> rich.progress.Progress:
    columns = (
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.DownloadColumn(),
        rich.progress.TransferSpeedColumn(),
        rich.progress.TimeRemainingColumn(),
    )
    return rich.progress.Progress(*columns, console=rich.console.Console(stderr=True))
