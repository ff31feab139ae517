"""What is to be known of a program that serves a model, so that it can be started, told from others and watched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from stoker.runtime.external.client import ServerClient


class Program(Protocol):
    """A server program with its model and its settings; each start of it has a port, a key and a name of its own."""

    @property
    def name(self) -> str:
        """Of the program, for logs and errors."""
        ...

    @property
    def start_s(self) -> float:
        """Longest time until the server can answer."""
        ...

    @property
    def has_workers(self) -> bool:
        """It starts processes of its own, which are not to outlive it."""
        ...

    @property
    def stop_s(self) -> float:
        """Longest time to stop when asked to."""
        ...

    @property
    def foreign_cpu(self) -> str:
        """What to say if the program was built for another CPU."""
        ...

    def command(self, port: int, alias: str) -> Sequence[str]:
        """The program and its arguments.

        Args:
            port: free a moment ago.
            alias: the name under which the server lists its model, by which it can be told from any other server.
        """
        ...

    def environment(self, key: str) -> Mapping[str, str]:
        """All of the environment. The key is passed there: every user of the machine can read command lines."""
        ...

    def client(self, port: int, key: str) -> ServerClient: ...

    def level(self, line: str) -> int | None:
        """The logging level of a line of the program's output; None = the line does not say."""
        ...

    async def warm_up(self, client: ServerClient) -> None:
        """Computes one token, so that the first request does not pay for touching the weights.

        Raises:
            BrokenOff: the server has gone.
            StokerError: what it answered.
        """
        ...
