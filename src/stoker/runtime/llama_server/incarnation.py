"""One llama-server from its start to its end: the process, its port, and the client that asks it."""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.engine.closing import aclosing_on_error
from stoker.errors import EngineCrashed, ModelNotLoaded, ResourceExhausted, StokerError, Timeout
from stoker.runtime.llama_server.arguments import start_arguments
from stoker.runtime.llama_server.binary import Binary, environment_of
from stoker.runtime.llama_server.client import BrokenOff, LlamaServerClient
from stoker.runtime.llama_server.model_file import Task
from stoker.runtime.llama_server.process import ServerProcess
from stoker.runtime.llama_server.wire import ModelList, decode

logger = logging.getLogger(__name__)

PROBE_S = 3.0
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.1, 2.0
_TELL_EVERY_S = 10.0
_WARM_UP_S = 30.0
DEATH_S = 3.0
"""A connection may break so long before the process that held it is known to be gone."""
_MAX_PORTS = 3
_MARKER_VARIABLE = "LLAMA_MEDIA_MARKER"
_MEDIA_MARKER = f"<__media_{secrets.token_hex(16)}__>"
"""One marker for all servers of this process, because a request may be repeated on another server."""
_KEY_VARIABLE = "LLAMA_API_KEY"
_OUR_VARIABLES = (
    *("HOST", "PORT", "REUSE_PORT", "API_PREFIX", "API_KEY_FILE", "SSL_KEY_FILE", "SSL_CERT_FILE", "STATIC_PATH"),
    *("EMBEDDINGS", "RERANKING", "POOLING", "ALIAS", "MODEL", "MODEL_URL", "HF_REPO", "HF_FILE", "MODELS_DIR"),
)
"""`LLAMA_ARG_…`: what would change where it listens, or what it serves."""


@dataclass(frozen=True, slots=True)
class Order:
    """What is started, again and again."""

    binary: Binary
    arguments: Sequence[str]
    further: Sequence[str]
    """The user's, which come last."""
    task: Task
    start_s: float
    """Longest time until it can answer."""


class _PortTaken(Exception):
    """Another program has the port."""


class Incarnation:
    """A llama-server that answers, made by `start`. Belongs to one event loop."""

    def __init__(self, process: ServerProcess, client: LlamaServerClient) -> None:
        self.process = process
        self.client = client

    @classmethod
    async def start(cls, order: Order) -> Incarnation:
        """Starts one on a free port, and returns when it has loaded its model and computed a token.

        Raises:
            EngineCrashed: it ended; the message has its last words.
            ModelNotLoaded: it was not ready in time, or was built for another CPU.
            ResourceExhausted: no process can be had.
        """
        for _ in range(_MAX_PORTS):
            try:
                return await cls._start(order, _free_port())
            except _PortTaken as error:
                logger.warning("%s: trying another port", error)
        raise EngineCrashed(f"llama-server found no free port in {_MAX_PORTS} attempts")

    async def stop(self) -> None:
        """Ends the process, with a bound, and waits for it, also if it is cancelled meanwhile. May be called twice."""
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
    async def _start(cls, order: Order, port: int) -> Incarnation:
        name, key = f"stoker-{secrets.token_hex(8)}", secrets.token_urlsafe(24)
        command = [
            str(order.binary.path),
            *order.arguments,
            *start_arguments(port, name),
            *order.further,
        ]
        logger.info("starting %s", " ".join(command))
        try:
            process = ServerProcess(command, _environment(order.binary.path, key))
        except OSError as error:
            raise ResourceExhausted(f"llama-server cannot be started: {error}") from error
        found = cls(process, LlamaServerClient(port, key))
        async with aclosing_on_error(found.stop):
            await found._become_ready(order, name, port)
            await found._warm_up(order)
        return found

    async def _become_ready(self, order: Order, name: str, port: int) -> None:
        """Looks at once when it ends, else after pauses that double."""
        clock = asyncio.get_running_loop().time
        began_at = told_at = clock()
        deadline, pause_s = began_at + order.start_s, _FIRST_PAUSE_S
        while not await self.process.wait(min(pause_s, max(0.0, deadline - clock()))):
            if await self._is_healthy():
                await self._check_identity(name, port)
                return
            if clock() >= deadline:
                words = self.process.last_words()
                message = f"llama-server was not ready within {order.start_s:g} s"
                raise ModelNotLoaded(f"{message}: {words}" if words else message)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)
            if clock() - told_at >= _TELL_EVERY_S:
                told_at = clock()
                logger.info("llama-server has not answered yet: %.0f of %g s", told_at - began_at, order.start_s)
        if await asyncio.to_thread(_is_taken, port):
            raise _PortTaken(f"port {port} was taken before llama-server had it")
        raise self._ended(order.binary)

    def _ended(self, binary: Binary) -> StokerError:
        if self.process.exited.result() != -signal.SIGILL:
            return EngineCrashed(f"llama-server {self.process.describe_end()}")
        return ModelNotLoaded(
            f"{binary.path} was built for another CPU: this one lacks an instruction that it uses (SIGILL). Install a "
            "llama-server that was built for this CPU and say where it is with --llama-server-path, or leave "
            "--runtime llama-server out: Stoker computes GGUF files itself"
        )

    async def _is_healthy(self) -> bool:
        """False at once if the process ends: another program may hold its port without answering."""
        probe = asyncio.ensure_future(self.client.get("/health", PROBE_S))
        try:
            await asyncio.wait([probe, self.process.exited], return_when=asyncio.FIRST_COMPLETED)
        finally:
            probe.cancel()
            await asyncio.wait([probe])
        return not probe.cancelled() and not isinstance(probe.exception(), BrokenOff | StokerError)

    async def _check_identity(self, name: str, port: int) -> None:
        """The program that answers at the port must know the name that this process gave it."""
        try:
            models = decode(await self.client.get("/v1/models", PROBE_S), ModelList, "list of models").data
        except (BrokenOff, StokerError):
            models = []
        if not any(model.id == name for model in models):
            raise _PortTaken(f"another server answers at port {port}")

    async def _warm_up(self, order: Order) -> None:
        """One token, so that the first request does not pay for touching the weights. An error is no reason to stop."""
        paths = {Task.TEXT: "/completion", Task.EMBEDDING: "/embedding", Task.RANK: "/rerank"}
        bodies: dict[Task, object] = {
            Task.TEXT: {"prompt": "hi", "n_predict": 1, "temperature": 0, "cache_prompt": False},
            Task.EMBEDDING: {"content": "hi"},
            Task.RANK: {"query": "hi", "documents": ["hi"]},
        }
        try:
            await self.client.post(paths[order.task], bodies[order.task], _WARM_UP_S)
        except (BrokenOff, StokerError, Timeout) as error:
            if await self.process.wait(DEATH_S if isinstance(error, BrokenOff) else 0.0):
                raise self._ended(order.binary) from error
            logger.warning("llama-server could not be warmed up: %s", error)


def _environment(binary: Path, key: str) -> dict[str, str]:
    """The key is passed in the environment: every user of the machine can read command lines."""
    dropped = {f"LLAMA_ARG_{name}" for name in _OUR_VARIABLES}
    kept = {name: value for name, value in environment_of(binary).items() if name not in dropped}
    return {**kept, _KEY_VARIABLE: key, _MARKER_VARIABLE: _MEDIA_MARKER}


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
