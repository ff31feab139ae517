"""Divides the process's file descriptors between connections and a reserve that no connection may use.

```
0 |  engines, files  |  served connections  |  excess connections: refused  |  reserve: engines, files  | limit
```

Without the reserve, connections could take the last descriptor: then no file could be read and no engine started.
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
"""Number of descriptors that served connections leave free; at most half of the limit."""
_NUM_KEPT = 128
"""Number of descriptors below the limit that no connection may use; at most a quarter of the limit."""
_COMPLAIN_EVERY_S = 60.0


def make_room(config: ServerConfig) -> ServerConfig:
    """Raises the process's limit of open files to fit `max_connections`, as far as the system allows.

    Returns:
        The settings, with a smaller `max_connections` and a warning in the log if fewer connections fit.
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


class Reserve:
    """Decides which connections may not be served because their descriptors fall into the reserve."""

    def __init__(self) -> None:
        self._complained_s: float | None = None

    def refuses(self, connection: socket.socket) -> bool:
        """Whether a new connection must be closed. Logs a warning at most once a minute."""
        if connection.fileno() < _first_kept():  # the system assigns the lowest free number
            return False
        now = time.monotonic()
        if self._complained_s is None or now - self._complained_s >= _COMPLAIN_EVERY_S:
            self._complained_s = now
            logger.warning("connections are refused: this process has too many files open (ulimit -n)")
        return True


class Listener(socket.socket):
    """A listening socket of which asyncio accepts no connection in the reserve. uvloop accepts without this method."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._reserve = Reserve()

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection and its address.

        Raises:
            ConnectionAbortedError: the connection was closed because too many files are open.
            OSError: as in `socket.accept`.
        """
        connection, address = super().accept()
        if self._reserve.refuses(connection):
            connection.close()
            raise ConnectionAbortedError("too many files are open")
        return connection, address


def _first_kept() -> int:
    limit = _limit()
    return limit - min(_NUM_KEPT, limit // 4)


def _limit() -> int:
    if sys.platform == "win32":  # Windows does not number sockets like files
        return sys.maxsize
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def _raised(wanted: int) -> int:
    """Raises the limit of open files to `wanted`, or as far as possible, and returns the new limit."""
    if sys.platform != "win32" and _limit() < wanted:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        except (ValueError, OSError) as error:  # some systems have a second, lower limit
            logger.debug("no more files may be open: %s", error)
    return _limit()
