"""Addresses for the servers that tests start."""

from __future__ import annotations

import atexit
import fcntl
import os
import random
import socket
import tempfile
from contextlib import ExitStack
from pathlib import Path

_PORTS = range(20_000, 32_000)
"""Below those that Linux gives to connections, and to servers that take any port."""
_locked = ExitStack()
"""Files named after ports, open until this process ends: no other process that runs tests is given one of these."""
atexit.register(_locked.close)


def free_port() -> int:
    """A port of 127.0.0.1 that is not listened on now, and that no test is given again while this process runs."""
    folder = Path(tempfile.gettempdir()) / f"ports-of-tests-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    for port in random.sample(_PORTS, len(_PORTS)):
        lock = (folder / str(port)).open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            lock.close()
        else:
            _locked.push(lock)
            return port
    raise AssertionError("no port is free")
