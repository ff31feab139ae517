"""Something that another thread wants done by the engine's own, between two steps; the other one waits for it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

from stoker.errors import StokerError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """Done or ended once, by the engine's thread; `future` tells the other one."""

    work: Callable[[], T]
    future: Future[T]

    def run(self) -> None:
        """Does it. An error that is not of the world is the engine's end."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(self.work())
        except StokerError as error:
            self.future.set_exception(error)

    def end(self, error: StokerError) -> None:
        """It will not be done, or not to its end."""
        if self.future.done():
            return
        if self.future.running() or self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)
