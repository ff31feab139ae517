"""What a model will take of this machine, by its files and by who will compute it; nothing is loaded for that."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.core.embedding import Pooling
from stoker.engine.config import EngineConfig
from stoker.errors import ModelUnsupported
from stoker.loading_gguf import adapters_bytes, num_slots
from stoker.loading_llama import attention_options, only_llama
from stoker.models.memory_plan import MemoryNeeds

if TYPE_CHECKING:
    from stoker.models.gguf import GGUFFile

_MIB = 2**20


def measure(config: EngineConfig) -> MemoryNeeds | None:
    """What loading `config.model_path` will take. `cache_ram` counts if it is given, and what a disk needs.

    Returns:
        None: it takes nothing that counts; it is a script for tests.

    Raises:
        ModelError: a file is missing or damaged.
        ConfigError: a size below 1.
    """
    from stoker.engine.tiers import least_ram_mib
    from stoker.models.onnx_folder import is_onnx_model

    if config.backend == "scripted":
        return None
    path = Path(config.model_path)
    needs = _measure_onnx(config) if is_onnx_model(path) else _measure_gguf(config, path)
    cache_bytes = least_ram_mib(config) * _MIB
    return replace(needs, backend=needs.backend or "onnx", cache_bytes=cache_bytes, min_cache_bytes=cache_bytes)


def _measure_onnx(config: EngineConfig) -> MemoryNeeds:
    from stoker.loading_onnx import measure_onnx

    return measure_onnx(config)


def _measure_gguf(config: EngineConfig, path: Path) -> MemoryNeeds:
    from stoker.backends.native import context_bytes, kv_element_bytes, spare_kv_tokens
    from stoker.models.gguf import part_paths, read_gguf
    from stoker.models.memory_plan import memory_needs

    with ExitStack() as opened:
        files = [opened.enter_context(read_gguf(part)) for part in part_paths(path)]
        is_native = _is_native(config, files)
        slots = num_slots(files[0], config.parallel)
        needs = memory_needs(
            files[0],
            ctx_size=config.ctx_size,
            kv_tokens=config.kv_tokens,
            parallel=config.parallel,
            kv_element_bytes=kv_element_bytes(files, config.kv_type)
            if is_native
            else attention_options(config).element_bytes,
            spare_kv_tokens=spare_kv_tokens(slots) if is_native else 0,
            context_bytes=context_bytes(files, config.threads, slots) if is_native else None,
            adapter_bytes=adapters_bytes(config, is_native=is_native),
            num_replicas=config.num_replicas,
        )
    return replace(needs, backend="native" if is_native else "llama")


def _is_native(config: EngineConfig, files: list[GGUFFile]) -> bool:
    """Who will compute, as far as that can be told without a tokenizer and without a device."""
    from stoker.backends.llama.gpu import built_for
    from stoker.backends.native import check_supported
    from stoker.models.embedding import read_pooling

    if config.backend != "auto":
        return config.backend == "native"
    if only_llama(config) is not None or built_for() is not None or read_pooling(files[0]) is Pooling.RANK:
        return False
    try:
        check_supported(files)
    except ModelUnsupported:
        return False
    return True
