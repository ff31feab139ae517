"""Whether llama-server computes, and what it is told besides. Values only."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from math import isfinite
from typing import Literal, TypeAlias

from stoker.engine.config import EngineConfig
from stoker.errors import ConfigError, InvalidInput

RuntimeName: TypeAlias = Literal["engine", "llama-server"]

_OURS = {
    "backend": "--backend",
    "kv_cache_dir": "--cache-dir",
    "cache_disk": "--cache-disk",
    "max_draft": "--max-draft",
    "provider": "--provider",
    "onnx_variant": "--onnx-variant",
    "lora": "--lora",
    "adapters": "--lora",
    "control_vector": "--control-vector",
}
"""Settings that llama-server has no part in, and their options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeConfig:
    """Who computes the answers: an engine process of ours, or llama.cpp's server as an external process.

    Raises:
        InvalidInput: a value cannot be used; `fields["parameter"]` names it.
    """

    runtime: RuntimeName = "engine"
    """Program that runs the model: engine = Stoker's own engine, llama-server = llama.cpp's server."""
    llama_server_path: str = ""
    """Path of the llama-server program. Default: the one in PATH, else the one of an installed wheel."""
    llama_server_args: str = ""
    """Additional arguments for llama-server, quoted as in a shell."""
    llama_server_start_s: float = 120.0
    """It has so long, in seconds, until it can answer."""

    def __post_init__(self) -> None:
        if not (isfinite(self.llama_server_start_s) and self.llama_server_start_s > 0):
            message = f"`llama_server_start_s` must be above 0 seconds, not {self.llama_server_start_s}"
            raise InvalidInput(message, parameter="llama_server_start_s")
        self.further_arguments()

    def further_arguments(self) -> list[str]:
        """`llama_server_args` in parts.

        Raises:
            InvalidInput: a quotation mark is not closed.
        """
        try:
            return shlex.split(self.llama_server_args)
        except ValueError as error:
            raise InvalidInput(f"`llama_server_args`: {error}", parameter="llama_server_args") from error


def check_engine(engine: EngineConfig) -> None:
    """Refuses what only engines of ours can do.

    Raises:
        ConfigError: says what.
    """
    usual = EngineConfig()
    for name, flag in _OURS.items():
        if getattr(engine, name) != getattr(usual, name):
            raise ConfigError(f"{flag} is not available with --runtime llama-server", key=name)
