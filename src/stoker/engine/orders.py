"""The child's stdin: the parent's orders, one JSON line each, and its end, which means that the parent has died."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import msgspec

from stoker.engine.protocol import Expect, Launch, Loading

Prepare: TypeAlias = Callable[[str], None]
"""Called with the path of a model that will probably be loaded. Must not fail, and keeps little if it is not loaded."""

EXIT_ORPHANED = 4

_STDIN = 0
_MAX_READ = 65536
_decoder: msgspec.json.Decoder[Expect | Launch] = msgspec.json.Decoder(Expect | Launch)


def await_launch(prepare: Prepare) -> Launch:
    """Waits for the `Launch`; calls `prepare` for an expected model meanwhile. Exits if the parent has died."""
    orders = _Orders()
    while (line := orders.next_line()) is not None:
        match _decoder.decode(line):
            case Launch() as launch:
                return launch
            case Expect(model_path):
                prepare(model_path)
    sys.exit(EXIT_ORPHANED)


def exit_with_parent(launch: Launch) -> None:
    """Waits until the parent has died, removes the sockets and folder that the parent left, and exits."""
    with suppress(OSError):
        while os.read(_STDIN, _MAX_READ):
            pass
    with suppress(OSError):  # a parent that was killed could not remove its sockets
        paths = [Path(e.removeprefix("ipc://")) for e in (launch.commands, launch.events) if e.startswith("ipc://")]
        for path in paths:
            path.unlink(missing_ok=True)
        for folder in {path.parent for path in paths}:
            folder.rmdir()
    os._exit(EXIT_ORPHANED)


class _Orders:
    """Reads lines from the file descriptor, because a daemon thread must not keep a buffered reader at exit."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque()
        self._rest = b""

    def next_line(self) -> bytes | None:
        """Waits for the next line; None = the parent has died."""
        while not self._lines:
            part = os.read(_STDIN, _MAX_READ)
            if not part:
                return None
            *lines, self._rest = (self._rest + part).split(b"\n")
            self._lines.extend(lines)
        return self._lines.popleft()


_TELL_EVERY_S = 0.1


class LoadProgress:
    """A `models.Progress` for weights that are read into memory. It reports at most ten times a second.

    Args:
        tell: called with each report; it must not wait.
        clock: seconds; only differences count.
    """

    def __init__(self, tell: Callable[[Loading], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._tell = tell
        self._clock = clock
        self._total = 0
        self._done = 0
        self._told_at = float("-inf")

    def start(self, total_bytes: int | None, label: str) -> None:
        """See `models.Progress.start`; if the size is unknown, no progress is reported."""
        self._total, self._done = total_bytes or 0, 0

    def advance(self, num_bytes: int) -> None:
        """See `models.Progress.advance`."""
        self._done += num_bytes
        now = self._clock()
        if self._total and (now >= self._told_at + _TELL_EVERY_S or self._done >= self._total):
            self._told_at = now
            self._tell(Loading(min(1.0, self._done / self._total)))

    def close(self) -> None:
        """See `models.Progress.close`."""
