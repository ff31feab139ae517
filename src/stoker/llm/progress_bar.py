"""A bar on stderr that counts finished prompts. Nothing is drawn, and rich not even loaded, unless it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager


@contextmanager
def progress_bar(num_prompts: int, *, is_shown: bool) -> Generator[Callable[[], None]]:
    """Gives a function to be called once per finished prompt."""
    if not is_shown:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("prompts", total=num_prompts)
        yield lambda: bar.advance(task)
