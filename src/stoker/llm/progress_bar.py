"""A bar on stderr that counts finished prompts. Nothing is drawn, and rich not even loaded, unless it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from stoker.lazy import lazy_module

if TYPE_CHECKING:
    import rich.console
    import rich.progress
else:
    rich = lazy_module("rich")


@contextmanager
def progress_bar(num_prompts: int, *, is_shown: bool) -> Generator[Callable[[], None]]:
    """Gives a function to be called once per finished prompt."""
    if not is_shown:
        yield lambda: None
        return
    shown = rich.progress
    columns = (*shown.Progress.get_default_columns(), shown.MofNCompleteColumn(), shown.TimeElapsedColumn())
    with shown.Progress(*columns, console=rich.console.Console(stderr=True)) as bar:
        task = bar.add_task("prompts", total=num_prompts)
        yield lambda: bar.advance(task)
