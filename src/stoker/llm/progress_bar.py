"""A progress bar that counts finished prompts, on a terminal or in a notebook. `rich` is imported only to draw it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from stoker.lazy import lazy_module

if TYPE_CHECKING:
    import rich.console
    import rich.progress
else:
    rich = lazy_module("rich")


_MANY = 16
"""Number of prompts from which a batch gets a progress bar by default."""


@contextmanager
def progress_bar(num_prompts: int, *, is_shown: bool | None) -> Generator[Callable[[], None]]:
    """Yields a function to be called once per finished prompt.

    Args:
        num_prompts: length of the batch.
        is_shown: whether to draw the bar; None = for 16 prompts or more, on a terminal or in a notebook.
    """
    if is_shown is None:
        is_shown = num_prompts >= _MANY and _can_draw()
    if not is_shown:
        yield lambda: None
        return
    shown = rich.progress
    columns = (*shown.Progress.get_default_columns(), shown.MofNCompleteColumn(), shown.TimeElapsedColumn())
    with shown.Progress(*columns, console=rich.console.Console(stderr=True)) as bar:
        task = bar.add_task("prompts", total=num_prompts)
        yield lambda: bar.advance(task)


def _can_draw() -> bool:
    """Whether stderr is a terminal, or this is a notebook with `ipywidgets`, which `rich` needs there."""
    return sys.stderr.isatty() or ("ipykernel" in sys.modules and find_spec("ipywidgets") is not None)
