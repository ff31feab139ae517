"""The settings of external servers: which program computes the answers, and its further arguments. Values only."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Literal, TypeAlias

from stoker.engine.config import EngineConfig
from stoker.errors import ConfigError, InvalidInput

RuntimeName: TypeAlias = Literal["engine", "llama-server", "vllm"]
EXTERNAL: tuple[RuntimeName, ...] = ("llama-server", "vllm")
"""Runtimes that are external programs."""

_ENGINE_ONLY = {
    "backend": "--backend",
    "kv_cache_dir": "--cache-dir",
    "cache_disk": "--cache-disk",
    "max_draft": "--max-draft",
    "provider": "--provider",
    "device_id": "--device-id",
    "onnx_variant": "--onnx-variant",
    "lora": "--lora",
    "adapters": "--lora",
    "control_vector": "--control-vector",
    "script": "--script",
}
_UNAVAILABLE: Mapping[RuntimeName, Mapping[str, str]] = {
    "llama-server": _ENGINE_ONLY,
    "vllm": {
        **{name: flag for name, flag in _ENGINE_ONLY.items() if flag != "--lora"},
        "kv_tokens": "--kv-tokens",
        "kv_type": "--kv-type",
        "cache_type_k": "--cache-type-k",
        "cache_type_v": "--cache-type-v",
        "flash_attn": "--flash-attn",
        "gpu_layers": "--gpu-layers",
        "n_cpu_moe": "--n-cpu-moe",
        "override_tensor": "--override-tensor",
        "split_mode": "--split-mode",
        "main_gpu": "--main-gpu",
        "tensor_split": "--tensor-split",
        "draft_model": "--draft-model",
        "cache_ram": "--cache-ram",
        "slot_save_path": "--slot-save-path",
    },
}
"""Settings that an external runtime does not support, each with its option on the command line."""
_ADVICE = {
    "kv_tokens": "--kv-cache-memory-bytes or --gpu-memory-utilization",
    "kv_type": "--kv-cache-dtype",
    "split_mode": "--tensor-parallel-size",
    "tensor_split": "--tensor-parallel-size",
    "draft_model": "--speculative-config",
    "cache_ram": "--kv-offloading-size",
}
"""For some unsupported settings: vLLM's own options, which can be given in `vllm_args`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeConfig:
    """Which program computes the answers: an engine process of Stoker's own, or an external server.

    Raises:
        InvalidInput: a value cannot be used; `fields["parameter"]` names it.
    """

    runtime: RuntimeName = "engine"
    """Program that runs the model: engine = Stoker's own engine, llama-server = llama.cpp's server, vllm = vLLM."""
    llama_server_path: str = ""
    """Path of the llama-server program. Default: the one in PATH, else the one of an installed wheel."""
    llama_server_args: str = ""
    """Additional arguments for llama-server, quoted as in a shell."""
    llama_server_start_s: float = 120.0
    """Maximum time until a started llama-server can answer, in seconds."""
    vllm_path: str = ""
    """Path of the vllm program. Default: the one in PATH, else the one of this Python environment."""
    vllm_args: str = ""
    """Additional arguments for `vllm serve`, quoted as in a shell."""
    vllm_start_s: float = 900.0
    """Maximum time until a started vLLM can answer, in seconds. It compiles kernels before it answers."""

    def __post_init__(self) -> None:
        for name in ("llama_server_start_s", "vllm_start_s"):
            value = getattr(self, name)
            if not (isfinite(value) and value > 0):
                raise InvalidInput(f"`{name}` must be above 0 seconds, not {value}", parameter=name)
        for name in ("llama_server_args", "vllm_args"):
            self.further_arguments(name)

    def further_arguments(self, name: str) -> list[str]:
        """The arguments in a setting, split as a shell does.

        Args:
            name: `llama_server_args` or `vllm_args`.

        Raises:
            InvalidInput: a quotation mark is not closed.
        """
        try:
            return shlex.split(getattr(self, name))
        except ValueError as error:
            raise InvalidInput(f"`{name}`: {error}", parameter=name) from error


def check_engine(engine: EngineConfig, runtime: RuntimeName) -> None:
    """Refuses engine settings that the runtime does not support.

    Raises:
        ConfigError: names the option, and an alternative if there is one.
    """
    usual = EngineConfig()
    for name, flag in _UNAVAILABLE[runtime].items():
        if getattr(engine, name) != getattr(usual, name):
            theirs = _ADVICE.get(name) if runtime == "vllm" else None
            advice = f'; use --vllm-args "{theirs} …"' if theirs else ""
            raise ConfigError(f"{flag} is not available with --runtime {runtime}{advice}", key=name)
