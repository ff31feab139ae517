"""One run of an external server, from its start to its end: the process, its port, and an HTTP client."""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import socket

import msgspec

from stoker.engine.closing import aclosing_on_error
from stoker.errors import EngineCrashed, ModelNotLoaded, ResourceExhausted, StokerError, reason_of
from stoker.runtime.external.client import BrokenOff, ServerClient
from stoker.runtime.external.process import ServerProcess
from stoker.runtime.external.program import Program

logger = logging.getLogger(__name__)

PROBE_S = 3.0
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.1, 2.0
_TELL_EVERY_S = 10.0
DEATH_S = 3.0
"""Maximum seconds between a broken connection and the moment when the end of its process is known."""
_MAX_PORTS = 3


class _Listed(msgspec.Struct, frozen=True):
    id: str


class _Models(msgspec.Struct, frozen=True):
    """The reply to `GET /v1/models`, as in OpenAI's API."""

    data: list[_Listed]


class _PortTaken(Exception):
    """Another program uses the port."""


class Incarnation:
    """A server that answers, made by `start` and ended by `stop`. Belongs to one event loop."""

    def __init__(self, process: ServerProcess, client: ServerClient) -> None:
        self.process = process
        self.client = client

    @classmethod
    async def start(cls, program: Program) -> Incarnation:
        """Starts a server on a free port, and returns when it has loaded its model and computed a token.

        Raises:
            EngineCrashed: the server ended; the message has its last output. Or no port was free.
            ModelNotLoaded: the server was not ready in time, or was built for another CPU.
            ResourceExhausted: the operating system cannot start a process.
        """
        for _ in range(_MAX_PORTS):
            try:
                return await cls._start(program, _free_port())
            except _PortTaken as error:
                logger.warning("%s: trying another port", error)
        raise EngineCrashed(f"{program.name} found no free port in {_MAX_PORTS} attempts")

    async def stop(self) -> None:
        """Ends the process within a bounded time, even if the caller is cancelled. Calling it twice is allowed."""
        stopping = asyncio.ensure_future(self._stop())
        try:
            await asyncio.shield(stopping)
        except asyncio.CancelledError:
            await asyncio.wait([stopping])
            raise

    async def _stop(self) -> None:
        await self.process.stop()
        await self.client.close()

    @classmethod
    async def _start(cls, program: Program, port: int) -> Incarnation:
        name, key = f"stoker-{secrets.token_hex(8)}", secrets.token_urlsafe(24)
        command = program.command(port, name)
        logger.info("starting %s", " ".join(command))
        try:
            process = ServerProcess(
                command,
                program.environment(key),
                name=program.name,
                level=program.level,
                has_workers=program.has_workers,
                stop_s=program.stop_s,
            )
        except OSError as error:
            raise ResourceExhausted(f"{program.name} cannot be started: {reason_of(error)}") from error
        found = cls(process, program.client(port, key))
        async with aclosing_on_error(found.stop):
            await found._become_ready(program, name, port)
            await found._warm_up(program)
        return found

    async def _become_ready(self, program: Program, name: str, port: int) -> None:
        """Polls the server, with pauses that double, until it is healthy; notices at once if the process ends."""
        clock = asyncio.get_running_loop().time
        began_at = told_at = clock()
        deadline, pause_s = began_at + program.start_s, _FIRST_PAUSE_S
        while not await self.process.wait(min(pause_s, max(0.0, deadline - clock()))):
            if await self._is_healthy():
                await self._check_identity(name, port)
                return
            if clock() >= deadline:
                words = self.process.last_words()
                message = f"{program.name} was not ready within {program.start_s:g} s"
                raise ModelNotLoaded(f"{message}: {words}" if words else message)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)
            if clock() - told_at >= _TELL_EVERY_S:
                told_at = clock()
                waited_s = told_at - began_at
                logger.info("%s has not answered yet: %.0f of %g s", program.name, waited_s, program.start_s)
        if await asyncio.to_thread(_is_taken, port):
            raise _PortTaken(f"port {port} was taken before {program.name} had it")
        raise self._ended(program)

    def _ended(self, program: Program) -> StokerError:
        if self.process.exited.result() != -signal.SIGILL:
            return EngineCrashed(f"{program.name} {self.process.describe_end()}")
        return ModelNotLoaded(program.foreign_cpu)

    async def _is_healthy(self) -> bool:
        """Whether the server is healthy. Returns at once if the process ends: another program may hold the port."""
        probe = asyncio.ensure_future(self.client.get("/health", PROBE_S))
        try:
            await asyncio.wait([probe, self.process.exited], return_when=asyncio.FIRST_COMPLETED)
        finally:
            probe.cancel()
            await asyncio.wait([probe])
        return not probe.cancelled() and not isinstance(probe.exception(), BrokenOff | StokerError)

    async def _check_identity(self, name: str, port: int) -> None:
        """Raises _PortTaken if another program answers at the port: only this server lists its model under `name`."""
        try:
            models = msgspec.json.decode(await self.client.get("/v1/models", PROBE_S), type=_Models).data
        except (BrokenOff, StokerError, msgspec.DecodeError, UnicodeDecodeError):
            models = []
        if not any(model.id == name for model in models):
            raise _PortTaken(f"another server answers at port {port}")

    async def _warm_up(self, program: Program) -> None:
        """Warms the server up. An error is only logged, unless the process has ended."""
        try:
            await program.warm_up(self.client)
        except (BrokenOff, StokerError) as error:
            if await self.process.wait(DEATH_S if isinstance(error, BrokenOff) else 0.0):
                raise self._ended(program) from error
            logger.warning("%s could not be warmed up: %s", program.name, error)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def _is_taken(port: int) -> bool:
    """Whether another program listens on the port."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return True
    except OSError:
        return False
