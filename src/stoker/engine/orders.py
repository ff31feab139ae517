"""The child's stdin: what its parent orders, one JSON line each, and that the parent is gone, however it died."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import msgspec

from stoker.engine.protocol import Expect, Launch

Prepare: TypeAlias = Callable[[str], None]
"""Told the path of a model that is probably loaded next. Must not fail, and keeps little if it is not."""

EXIT_ORPHANED = 4

_STDIN = 0
_MAX_READ = 65536
_decoder: msgspec.json.Decoder[Expect | Launch] = msgspec.json.Decoder(Expect | Launch)


def await_launch(prepare: Prepare) -> Launch:
    """Waits for the orders, and prepares what is expected meanwhile. Exits if the parent is gone."""
    orders = _Orders()
    while (line := orders.next_line()) is not None:
        match _decoder.decode(line):
            case Launch() as launch:
                return launch
            case Expect(model_path):
                prepare(model_path)
    sys.exit(EXIT_ORPHANED)


def exit_with_parent(launch: Launch) -> None:
    """Waits until the parent is gone, removes what it could not, and exits."""
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
    """Lines from the descriptor, because a buffered reader cannot be left inside a daemon thread."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque()
        self._rest = b""

    def next_line(self) -> bytes | None:
        """None = the parent is gone."""
        while not self._lines:
            part = os.read(_STDIN, _MAX_READ)
            if not part:
                return None
            *lines, self._rest = (self._rest + part).split(b"\n")
            self._lines.extend(lines)
        return self._lines.popleft()
