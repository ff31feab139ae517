"""`vllm serve` as a `Program`: its command line, its environment and its log lines."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.errors import ConfigError
from stoker.runtime.external.client import ServerClient
from stoker.runtime.vllm.wire import reply_error

NAME = "vllm"
MAX_LOGPROBS = 100
"""Maximum number of alternatives per token that Stoker lets a client request; vLLM's default limit is 20."""
_WARM_UP_S = 300.0
"""Timeout of the first token in seconds, which may include the compilation of kernels."""
_LEVEL = re.compile(r"(?:\([^)]*\) )?(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b")
"""The beginning of vLLM's log lines: the process that writes the line, and the level."""
_LEVELS = {"WARNING": logging.INFO, "ERROR": logging.WARNING, "CRITICAL": logging.WARNING}
_KEY_VARIABLE = "VLLM_API_KEY"
_GIVEN = {
    "--model": "MODEL",
    "--max-model-len": "--ctx-size",
    "--max-num-seqs": "--parallel",
    "--chat-template": "--chat-template-file",
    **dict.fromkeys(("--host", "--port", "--uds", "--api-key", "--served-model-name", "--generation-config"), ""),
    **dict.fromkeys(("--enable-lora", "--lora-modules"), "--lora"),
    **dict.fromkeys(("--ssl-keyfile", "--ssl-certfile", "--root-path", "--headless", "--api-server-count"), ""),
    "--pooler-config": "--pooling",
    **dict.fromkeys(("--runner", "--task", "--convert", "--skip-tokenizer-init", "--max-logprobs"), ""),
}
"""Options that Stoker sets itself, each with the option of Stoker to use instead; empty = there is none."""
_QUIET = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
"""Variables that turn usage statistics off, unless the environment sets them otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VLLMProgram:
    """The `Program` of vLLM with one model."""

    path: Path
    arguments: Sequence[str]
    start_s: float
    """Maximum seconds until the server can answer."""
    threads: int | None = None
    """Threads of each of its processes if a CPU computes; None = as vLLM chooses."""

    can_generate: bool = True
    has_workers: bool = True
    stop_s: float = 10.0

    @property
    def name(self) -> str:
        return NAME

    @property
    def foreign_cpu(self) -> str:
        return (
            f"the vLLM of {self.path} was built for another CPU or GPU: an instruction is missing here (SIGILL). "
            "Install a build for this machine, and say where it is with --vllm-path"
        )

    def command(self, port: int, alias: str) -> Sequence[str]:
        return [str(self.path), "serve", *self.arguments, "--port", str(port), "--served-model-name", alias]

    def environment(self, key: str) -> dict[str, str]:
        threads = {} if self.threads is None else {"OMP_NUM_THREADS": str(self.threads)}
        return {**_QUIET, **os.environ, **threads, _KEY_VARIABLE: key}

    def client(self, port: int, key: str) -> ServerClient:
        return ServerClient(port, key, name=NAME, reply_error=reply_error)

    def level(self, line: str) -> int | None:
        match = _LEVEL.match(line)
        return _LEVELS.get(match[1], logging.DEBUG) if match else None

    async def warm_up(self, client: ServerClient) -> None:
        body = {"prompt": [0], "max_tokens": 1, "temperature": 0, "ignore_eos": True}
        if self.can_generate:
            await client.post("/v1/completions", body, _WARM_UP_S)
        else:
            await client.post("/v1/embeddings", {"input": [[0]]}, _WARM_UP_S)


def find_program(given: str = "") -> Path:
    """The path of the program: the given one, else the one in PATH, else the one in the folder of this Python.

    Raises:
        ConfigError: no program was found; the message says how to get one.
    """
    if given:
        found = shutil.which(os.path.expanduser(given))
        if found is None:
            raise ConfigError(f"there is no program {given}", key="vllm_path")
        return Path(found).absolute()
    found = shutil.which(NAME) or shutil.which(NAME, path=str(Path(sys.executable).parent))
    if found is None:
        message = "there is no vllm in PATH: install it (`pip install vllm`), or say where it is with --vllm-path"
        raise ConfigError(message, key="vllm_path")
    return Path(found).absolute()


def arguments(
    model: Path,
    context_size: int,
    parallel: int,
    further: Sequence[str],
    adapters: Sequence[str] = (),
    *,
    pooling: str = "",
) -> list[str]:
    """The arguments that are the same for every start of a server.

    Args:
        model: the folder that is served.
        context_size: maximum length of a single request, in tokens.
        parallel: maximum number of requests that run at the same time.
        further: the user's options, which come last, because the last of two equal options counts.
        adapters: see `PEFTAdapters.arguments`.
        pooling: see `ModelFolder.pooling`.

    Raises:
        ConfigError: Stoker sets one of the user's options itself.
    """
    for part in further:
        flag = part.partition("=")[0]
        if flag in _GIVEN:
            advice = f"; use Stoker's {_GIVEN[flag]}" if _GIVEN[flag] else ""
            raise ConfigError(f"--vllm-args: {flag} is given by Stoker{advice}", key="vllm_args")
    own = ["--host", "127.0.0.1", "--max-model-len", str(context_size), "--max-num-seqs", str(parallel)]
    # Stoker reads the recommended sampling parameters itself, and sends them with every request.
    own += ["--generation-config", "vllm", "--max-logprobs", str(MAX_LOGPROBS), "--enable-prompt-tokens-details"]
    if pooling:
        own += ["--runner", "pooling"]
    if pooling not in ("", "vllm"):
        own += ["--pooler-config", json.dumps({"pooling_type": pooling.upper()})]
    return [str(model), *own, *adapters, *further]
