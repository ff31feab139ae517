"""Names of the stages of a step, for measurements of where its time goes (profiling). It measures nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

Stage: TypeAlias = Literal["schedule", "bind", "forward", "mask", "sample", "detokenize", "publish"]

Mark: TypeAlias = Callable[[Stage], None]
"""Called at the end of a stage: the time since the previous call belongs to it. A stage may occur more than once."""


def no_mark(stage: Stage) -> None:
    """Ignores the stage: no measurement is running."""
