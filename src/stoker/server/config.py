"""The settings of the HTTP server; where they come from is not its business."""

from __future__ import annotations

import msgspec


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How to listen, and the bounds of everything a client could make large or slow."""

    host: str = "127.0.0.1"
    port: int = 8080
    """0 = a free one, chosen by the operating system."""
    strict_models: bool = False
    """Refuse a request that names another model than the served one."""
    max_body_bytes: int = 32 * 2**20
    max_choices: int = 64
    """Most answers of one HTTP request: its prompts times `n`."""
    max_stored_responses: int = 1024
    """Responses that are kept to be fetched or gone on from; the oldest leave first."""
    max_stored_bytes: int = 64 * 2**20
    """The same, as the size of their conversations."""
    stored_response_s: float = 86_400.0
    """How long a response is kept."""
    max_connections: int = 1024
    body_timeout_s: float = 60.0
    """Longest time to receive a request body."""
    request_timeout_s: float | None = None
    """Longest time for one answer, and the most that a request's own `timeout` may ask for. None = no limit."""
    keep_alive_s: float = 15.0
    """A stream that was silent for so long gets a comment line, so that no proxy takes it for dead."""
    write_timeout_s: float = 60.0
    """A client that takes no bytes for so long is cut off."""
    idle_connection_s: int = 65
    """How long a connection without a request is kept open."""
    drain_s: float = 30.0
    """At shutdown, how long running requests may go on."""
