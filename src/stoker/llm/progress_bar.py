"""A bar that counts finished prompts, on a terminal or in a notebook. Without one, rich is not even loaded."""

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
"""Prompts of a batch that is long enough for a bar without being asked for."""


@contextmanager
def progress_bar(num_prompts: int, *, is_shown: bool | None) -> Generator[Callable[[], None]]:
    """Gives a function to be called once per finished prompt.

    Args:
        num_prompts: length of the batch.
        is_shown: None = if the batch is long and somewhere to draw it is there.
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
    """On a terminal; and in a notebook that has the widgets with which rich draws there."""
    return sys.stderr.isatty() or ("ipykernel" in sys.modules and find_spec("ipywidgets") is not None)
