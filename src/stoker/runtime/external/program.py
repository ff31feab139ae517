"""`Program`: the interface of a server program, by which it is started, identified and watched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from stoker.runtime.external.client import ServerClient


class Program(Protocol):
    """A server program with its model and its settings. Each start gets its own port, API key and model alias."""

    @property
    def name(self) -> str:
        """The program's name, for logs and errors."""
        ...

    @property
    def start_s(self) -> float:
        """Maximum seconds until the server can answer."""
        ...

    @property
    def has_workers(self) -> bool:
        """Whether the server starts processes of its own, which must not outlive it."""
        ...

    @property
    def stop_s(self) -> float:
        """Maximum seconds to stop after SIGTERM."""
        ...

    @property
    def foreign_cpu(self) -> str:
        """The error message if the program was built for another CPU."""
        ...

    def command(self, port: int, alias: str) -> Sequence[str]:
        """The program and its arguments.

        Args:
            port: port to listen on, which was free a moment ago.
            alias: the name under which the server lists its model; identifies the server.
        """
        ...

    def environment(self, key: str) -> Mapping[str, str]:
        """The complete environment. It has the API key, because every user of the machine can read command lines."""
        ...

    def client(self, port: int, key: str) -> ServerClient: ...

    def level(self, line: str) -> int | None:
        """The logging level of a line of the program's output; None = the line does not tell."""
        ...

    async def warm_up(self, client: ServerClient) -> None:
        """Computes one token, so that the first request does not pay for touching the weights.

        Raises:
            BrokenOff: the server is gone.
            StokerError: the server answered with an error.
        """
        ...
