"""Addresses for the servers that tests start."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
