"""The stages of a step, by name, for measuring where its time goes. Nothing is measured here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

Stage: TypeAlias = Literal["schedule", "bind", "forward", "mask", "sample", "detokenize", "publish"]

Mark: TypeAlias = Callable[[Stage], None]
"""Called at the end of a part of a step: the time since the call before belongs to it. A part may come repeatedly."""


def no_mark(stage: Stage) -> None:
    """Ignores the stage: no measurement is running."""
