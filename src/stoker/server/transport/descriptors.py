"""How many files this process may have open: room for connections, and a rest that none of them gets.

```
0 |  engines, files  |  connections that are served  |  one too many: told so  |  kept for engines, files  | limit
```

A connection that took the last descriptor would take more than itself: nothing could be read, and no engine started.
"""

from __future__ import annotations

import logging
import socket
import sys
import time
from typing import Any

import msgspec

from stoker.server.config import ServerConfig

if sys.platform != "win32":
    import resource

logger = logging.getLogger(__name__)

_NUM_OTHERS = 512
"""Descriptors besides those of connections that are served; where there are few, at most half of them."""
_NUM_KEPT = 128
"""The last of these, which no connection gets; where there are few, at most a quarter of all."""
_COMPLAIN_EVERY_S = 60.0


def make_room(config: ServerConfig) -> ServerConfig:
    """Raises what this process may have open until `max_connections` fit in, as far as the system lets it.

    Returns:
        The settings, with as many connections as do fit in; if those are fewer, the log says so.
    """
    limit = _raised(config.max_connections + _NUM_OTHERS)
    room = limit - min(_NUM_OTHERS, limit // 2)
    if room >= config.max_connections:
        return config
    logger.warning(
        "only %d connections are served at the same time, not %d: this process may have %d files open (ulimit -n)",
        *(room, config.max_connections, limit),
    )
    return msgspec.structs.replace(config, max_connections=max(1, room))


class Listener(socket.socket):
    """Accepts no connection that would be among the last of what this process may have open: that one is closed."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._complained_s: float | None = None

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection.

        Raises:
            ConnectionAbortedError: there was one, and it is closed.
            OSError: as every socket's.
        """
        connection, address = super().accept()
        if connection.fileno() < _first_kept():  # a descriptor is the lowest number that is free
            return connection, address
        connection.close()
        self._complain()
        raise ConnectionAbortedError("too many files are open")

    def _complain(self) -> None:
        now = time.monotonic()
        if self._complained_s is None or now - self._complained_s >= _COMPLAIN_EVERY_S:
            self._complained_s = now
            logger.warning("connections are refused: this process has too many files open (ulimit -n)")


def _first_kept() -> int:
    limit = _limit()
    return limit - min(_NUM_KEPT, limit // 4)


def _limit() -> int:
    if sys.platform == "win32":  # sockets have no such numbers there
        return sys.maxsize
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def _raised(wanted: int) -> int:
    """The bound, after it was raised to `wanted` or as far as possible."""
    if sys.platform != "win32" and _limit() < wanted:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        except (ValueError, OSError) as error:  # some systems have another bound behind this one
            logger.debug("no more files may be open: %s", error)
    return _limit()
