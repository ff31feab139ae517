"""A function call that another thread gives to the engine's thread, which runs it between two steps."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

from stoker.errors import StokerError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A call with a future for its result. The engine's thread runs or ends it once; the other thread waits for it."""

    work: Callable[[], T]
    future: Future[T]

    def run(self) -> None:
        """Runs the call. A `StokerError` goes to the future; any other exception is raised, and ends the engine."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(self.work())
        except StokerError as error:
            self.future.set_exception(error)

    def end(self, error: StokerError) -> None:
        """Ends the call with `error`, unless it is done already."""
        if self.future.done():
            return
        if self.future.running() or self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)
