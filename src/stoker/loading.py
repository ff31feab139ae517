"""Opens a model, whatever its files are, and says what an engine must know of it; what the engine does with it is for
`assembly` to arrange.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.backends.base import AdapterPort
from stoker.core.embedding import Pooling
from stoker.core.stages import Mark
from stoker.engine.adapters import Adapters, ReadAdapter
from stoker.engine.config import EngineConfig
from stoker.engine.loaded import Loaded
from stoker.errors import ConfigError, ModelUnsupported
from stoker.loading_llama import only_llama

if TYPE_CHECKING:
    from stoker.models.lora import LoraFile
    from stoker.models.progress import Progress

logger = logging.getLogger(__name__)

_MIN_SLOTS, _SLOTS_PER_RUNNING = 16, 4
"""Of a script; of models their own modules know."""


def load_model(config: EngineConfig, progress: Progress | None, mark: Mark) -> Loaded:
    """Opens `config.model_path`, a GGUF file or an ONNX folder. For the errors see `load_gguf` and `load_onnx`."""
    from stoker.models.onnx_folder import is_onnx_model

    is_onnx = is_onnx_model(Path(config.model_path))
    if config.backend not in ("auto", "onnx" if is_onnx else "native", "onnx" if is_onnx else "llama"):
        kind = "an ONNX model" if is_onnx else "a GGUF file"
        raise ModelUnsupported(
            f"{config.model_path} is {kind}, which the backend `{config.backend}` does not run; use `auto`",
            backend=config.backend,
        )
    return load_onnx(config, mark) if is_onnx else load_gguf(config, progress, mark)


def load_gguf(config: EngineConfig, progress: Progress | None, mark: Mark) -> Loaded:
    """Opens the file `config.model_path`.

    Args:
        config: `backend` is `auto`, `native` or `llama`.
        progress: told how far packing is.
        mark: told when a part of a step has ended.

    Raises:
        ModelError: the model is missing, damaged, or nothing here runs it.
        ResourceExhausted: it does not fit into memory.
        ConfigError: a size cannot be had with this model.
    """
    from stoker.loading_gguf import open_gguf
    from stoker.models.description import describe
    from stoker.models.gguf import part_paths, read_gguf
    from stoker.models.lora import lora_target, read_lora
    from stoker.models.model_defaults import model_defaults

    path = Path(config.model_path)
    _warn_of_onnx_options(config)
    with ExitStack() as opened:
        files = [opened.enter_context(read_gguf(part)) for part in part_paths(path)]
        facts = describe(files[0])
        defaults = model_defaults(files[0]).filled_from(config.sampling)
        found = open_gguf(config, files, progress, mark)
        target = lora_target(files)
    return Loaded(
        backend=found.backend,
        kv_port=found.kv_port,
        maxima_port=found.maxima_port,
        embedder=found.embedder,
        adapters=_adapters(found.adapter_port, lambda path: read_lora(path, target)),
        backend_name=found.name,
        tokenizer=found.tokenizer,
        defaults=defaults,
        path=path,
        chat_template=facts.chat_template,
        num_parameters=facts.num_parameters,
        size_bytes=facts.weights_bytes,
        weight_files=tuple(part_paths(path)),
    )


def _warn_of_onnx_options(config: EngineConfig) -> None:
    """They are no error: a server may have models of both kinds."""
    usual = EngineConfig()
    options = [
        name for name in ("provider", "device_id", "onnx_variant") if getattr(config, name) != getattr(usual, name)
    ]
    if options:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in options)
        logger.warning("%s is a GGUF file, and has no use for %s", config.model or config.model_path, flags)


def load_onnx(config: EngineConfig, mark: Mark) -> Loaded:
    """Opens the folder, or the graph, `config.model_path`. For the errors see `open_onnx`."""
    from stoker.loading_onnx import open_onnx

    if (reason := only_llama(config)) is not None:
        raise ConfigError(f"{config.model_path} is an ONNX model, and {reason}", key="backend")
    if config.lora or config.adapters:
        raise ConfigError(
            f"{config.model_path} is an ONNX model, and adapters (--lora) are for GGUF models", key="lora"
        )
    opened = open_onnx(config, mark)
    return Loaded(
        backend=opened.backend,
        kv_port=opened.backend,
        backend_name="onnx",
        tokenizer=opened.tokenizer,
        defaults=opened.facts.defaults.filled_from(config.sampling),
        path=opened.graph.path.parent,
        chat_template=opened.facts.chat_template,
        num_parameters=opened.graph.num_parameters,
        size_bytes=opened.graph.weights_bytes,
        weight_files=opened.graph.weight_files,
        max_running=opened.max_running,
    )


def _adapters(port: AdapterPort | None, read: ReadAdapter) -> Adapters:
    return Adapters() if port is None else Adapters(port, read)


def load_scripted(config: EngineConfig) -> Loaded:
    """No model at all, for tests: `scripted` babbles, any other name is what it always answers."""
    from stoker.backends.scripted import (
        ScriptedBackend,
        ScriptedEmbedder,
        ScriptedTokenizer,
        reply_with,
        scripted_embedding_info,
        scripted_info,
    )

    context_size = config.ctx_size or 512
    info = scripted_info(
        context_size=context_size,
        kv_tokens=config.kv_tokens or context_size * config.parallel,
        num_slots=max(_MIN_SLOTS, _SLOTS_PER_RUNNING * config.parallel),
    )
    next_token = None if config.model == "scripted" else reply_with(config.model)
    backend = ScriptedBackend(info, next_token=next_token)
    pooling = Pooling(config.pooling or "mean")
    return Loaded(
        backend=backend,
        kv_port=backend,
        adapters=Adapters(backend, scripted_adapter),
        embedder=ScriptedEmbedder(scripted_embedding_info(pooling=pooling, max_tokens=context_size)),
        backend_name="scripted",
        tokenizer=ScriptedTokenizer(),
        defaults=config.sampling,
        path=Path(config.model_path),
        chat_template=None,
        num_parameters=0,
        size_bytes=0,
    )


def scripted_adapter(path: Path) -> LoraFile:
    """Any file is an adapter of the scripted model."""
    from stoker.models.lora import LoraFile, content_key, file_version

    version = file_version(path)
    return LoraFile(path, content_key(path), 1, 0.0, 1, path.stat().st_size, version)
