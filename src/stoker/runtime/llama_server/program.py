"""llama-server as a `Program`: its command line, its environment and its log lines."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from stoker.runtime.external.client import ServerClient
from stoker.runtime.llama_server.arguments import start_arguments
from stoker.runtime.llama_server.binary import Binary, environment_of
from stoker.runtime.llama_server.model_file import Task
from stoker.runtime.llama_server.wire import reply_error

NAME = "llama-server"
_WARM_UP_S = 30.0
_LEVEL = re.compile(r"[\d.]+ ([DIWE]) ")
"""The beginning of llama-server's log lines: the time since its start, and the level."""
_LEVELS = {"D": logging.DEBUG, "I": logging.DEBUG, "W": logging.INFO, "E": logging.WARNING}
_MARKER_VARIABLE = "LLAMA_MEDIA_MARKER"
_MEDIA_MARKER = f"<__media_{secrets.token_hex(16)}__>"
"""One marker for all servers of this process, because a request may be repeated on another server."""
_KEY_VARIABLE = "LLAMA_API_KEY"
_OUR_VARIABLES = (
    *("HOST", "PORT", "REUSE_PORT", "API_PREFIX", "API_KEY_FILE", "SSL_KEY_FILE", "SSL_CERT_FILE", "STATIC_PATH"),
    *("EMBEDDINGS", "RERANKING", "POOLING", "ALIAS", "MODEL", "MODEL_URL", "HF_REPO", "HF_FILE", "MODELS_DIR"),
)
"""Variables `LLAMA_ARG_…` that are removed: they would change where llama-server listens, or what it serves."""


@dataclass(frozen=True, slots=True)
class Order:
    """The `Program` of llama-server with one model."""

    binary: Binary
    arguments: Sequence[str]
    further: Sequence[str]
    """The user's options, which come last."""
    task: Task
    start_s: float
    """Maximum seconds until the server can answer."""

    has_workers: bool = False
    stop_s: float = 1.0

    @property
    def name(self) -> str:
        return NAME

    @property
    def foreign_cpu(self) -> str:
        return (
            f"{self.binary.path} was built for another CPU: this one lacks an instruction that it uses (SIGILL). "
            "Install a llama-server that was built for this CPU and say where it is with --llama-server-path, or leave "
            "--runtime llama-server out: Stoker computes GGUF files itself"
        )

    def command(self, port: int, alias: str) -> Sequence[str]:
        return [str(self.binary.path), *self.arguments, *start_arguments(port, alias), *self.further]

    def environment(self, key: str) -> dict[str, str]:
        dropped = {f"LLAMA_ARG_{name}" for name in _OUR_VARIABLES}
        kept = {name: value for name, value in environment_of(self.binary.path).items() if name not in dropped}
        return {**kept, _KEY_VARIABLE: key, _MARKER_VARIABLE: _MEDIA_MARKER}

    def client(self, port: int, key: str) -> ServerClient:
        return ServerClient(port, key, name=NAME, reply_error=reply_error)

    def level(self, line: str) -> int | None:
        match = _LEVEL.match(line)
        return _LEVELS[match[1]] if match else None

    async def warm_up(self, client: ServerClient) -> None:
        paths = {Task.TEXT: "/completion", Task.EMBEDDING: "/embedding", Task.RANK: "/rerank"}
        bodies: dict[Task, object] = {
            Task.TEXT: {"prompt": "hi", "n_predict": 1, "temperature": 0, "cache_prompt": False},
            Task.EMBEDDING: {"content": "hi"},
            Task.RANK: {"query": "hi", "documents": ["hi"]},
        }
        await client.post(paths[self.task], bodies[self.task], _WARM_UP_S)
