"""Downloads without a network, for tests."""

from __future__ import annotations

import threading
from pathlib import Path

from stoker.errors import StokerError
from stoker.models.progress import Progress
from tests.waiting import BOUND_S


class Source:
    """Where models come from: piece by piece, when the test says so."""

    def __init__(self, error: StokerError | None = None) -> None:
        self.error = error
        self.late: StokerError | None = None
        """Is raised instead of the end."""
        self.go_on = threading.Semaphore(0)
        self.calls: list[str] = []
        self.ended = threading.Event()
        self.end: BaseException | None = None

    def __call__(self, model: str, *, progress: Progress) -> object:
        self.calls.append(model)
        try:
            if self.error is not None:
                raise self.error
            progress.start(30, "m.gguf")
            for _ in range(3):
                assert self.go_on.acquire(timeout=BOUND_S)
                progress.advance(10)
            if self.late is not None:
                raise self.late
            progress.close()
        except BaseException as error:
            self.end = error
            raise
        finally:
            self.ended.set()
        return Path("m.gguf")
