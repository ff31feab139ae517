"""Builds engines and servers out of the rooms; knows every room and decides nothing they can decide themselves.

`python -m stoker.assembly` is the engine's child process: it is told on stdin what to build, see `engine.process`.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from stoker.backends.base import Backend
from stoker.core.scheduler import SchedulerConfig
from stoker.core.stages import Mark, no_mark
from stoker.engine.config import EngineConfig, SupervisionConfig
from stoker.engine.engine import Engine
from stoker.engine.prompt import find_fill_tokens
from stoker.engine.protocol import EmbeddingCard, ModelCard
from stoker.engine.tiers import open_kv_store
from stoker.errors import ConfigError
from stoker.loading import Loaded, check_backend, load_gguf, load_scripted
from stoker.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from stoker.cache.store import KVStore
    from stoker.models.progress import Progress
    from stoker.runtime.registry import Registry
    from stoker.server.config import ServerConfig


def build_engine(
    config: EngineConfig, *, progress: Progress | None = None, mark: Mark = no_mark
) -> tuple[Engine, ModelCard]:
    """Loads a model and puts an engine in front of it.

    Args:
        config: `model` is resolved, and downloaded if necessary, unless `model_path` is given.
        progress: told about the download.
        mark: told when a part of a step has ended.

    Raises:
        ModelError: the model is missing, damaged, or nothing here runs it.
        ResourceExhausted: it does not fit into memory.
        ConfigError: a size cannot be had with this model.
    """
    loaded = _load(config, progress, mark)
    is_built = False
    try:
        scheduling = _scheduling(config, loaded.backend)
        engine = Engine(
            loaded.backend,
            loaded.tokenizer,
            config=scheduling,
            defaults=loaded.defaults,
            mark=mark,
            kv_port=loaded.kv_port,
            kv_store=_kv_store(config, loaded),
            embedder=loaded.embedder,
        )
        is_built = True
    finally:
        if not is_built:
            loaded.backend.close()
    return engine, _card(config, loaded, scheduling)


def local_model(config: EngineConfig, *, progress: Progress | None = None) -> EngineConfig:
    """The same configuration with the model's file on this disk, downloaded if necessary.

    Raises:
        ModelError: there is no such model, or no way to get it.
    """
    import msgspec

    from stoker.models.store import resolve

    check_backend(config)
    if config.model_path or config.backend == "scripted":
        return config
    return msgspec.structs.replace(config, model_path=str(resolve(config.model, progress=progress)))


def create_registry(engine: EngineConfig, server: ServerConfig, supervision: SupervisionConfig) -> Registry:
    """The served models: one, whose engine will run in a supervised child process. Nothing is started yet.

    Args:
        engine: with the file on this disk, see `local_model`: a child downloads nothing.

    Raises:
        ConfigError: the model's path or name is not valid Unicode, or a pattern is no regular expression.
    """
    from stoker.engine.client import EngineClient
    from stoker.runtime.local import LocalRuntime
    from stoker.runtime.registry import Registry, ServedModel, served_names
    from stoker.text.volatile import VolatileHeaders

    _check_unicode(engine)
    volatile = VolatileHeaders(server.volatile_headers)
    runtime = LocalRuntime(EngineClient(engine, supervision=supervision), volatile)
    names = served_names(engine.name or engine.model, engine.model)
    return Registry(ServedModel(names, runtime), strict=server.strict_models)


def _check_unicode(engine: EngineConfig) -> None:
    """What the child is told, and what clients call the model, is JSON."""
    for text in (engine.model, engine.model_path, engine.name):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"{text!r} is not valid UTF-8; rename the file or link to it", key="model") from error


def run_server(
    engine: EngineConfig, server: ServerConfig, supervision: SupervisionConfig, on_ready: Callable[[str], None]
) -> None:
    """Serves a model over HTTP until SIGINT or SIGTERM; `on_ready` is told the URL.

    Raises:
        StokerError: the model cannot be loaded, or the address cannot be had.
    """
    from stoker.server.app import serve

    serve(create_registry(engine, server, supervision), server, on_ready)


def _load(config: EngineConfig, progress: Progress | None, mark: Mark) -> Loaded:
    check_backend(config)
    if config.backend == "scripted":
        return load_scripted(config)
    return load_gguf(local_model(config, progress=progress), progress, mark)


def _scheduling(config: EngineConfig, backend: Backend) -> SchedulerConfig:
    info = backend.info
    if config.parallel > info.num_slots:
        raise ConfigError(
            f"--parallel {config.parallel} is too much: {info.name} can run at most {info.num_slots} at the same time",
            key="parallel",
        )
    return SchedulerConfig(max_running=min(config.parallel, info.max_batch_tokens), max_waiting=config.max_queue)


def _kv_store(config: EngineConfig, loaded: Loaded) -> KVStore | None:
    from stoker.cache.fingerprint import WeightFile
    from stoker.models.gguf import part_paths
    from stoker.models.memory import available_memory

    if loaded.kv_port is None:
        return None
    weights = [WeightFile.of(path) for path in part_paths(loaded.path)] if loaded.size_bytes else []
    return open_kv_store(config, loaded.backend.info, weights, available_memory())


def _card(config: EngineConfig, loaded: Loaded, scheduling: SchedulerConfig) -> ModelCard:
    info, tokenizer = loaded.backend.info, loaded.tokenizer
    return ModelCard(
        name=config.name or config.model or info.name,
        backend=loaded.backend_name,
        architecture=info.architecture,
        path=str(loaded.path),
        vocab_size=info.vocab_size,
        trained_context=info.trained_context,
        context_size=info.context_size,
        kv_tokens=info.kv_tokens,
        parallel=scheduling.max_running,
        max_queue=scheduling.max_waiting,
        chat_template=loaded.chat_template,
        bos_token=_token_text(tokenizer, tokenizer.bos_token_id),
        eos_token=_token_text(tokenizer, tokenizer.eos_token_id),
        num_parameters=loaded.num_parameters,
        size_bytes=loaded.size_bytes,
        created=int(time.time()),
        fill_tokens=find_fill_tokens(tokenizer),
        embedding=_embedding_card(loaded),
        can_generate=info.can_generate,
    )


def _embedding_card(loaded: Loaded) -> EmbeddingCard | None:
    if loaded.embedder is None:
        return None
    info = loaded.embedder.embedding
    return EmbeddingCard(info.pooling.value, info.size, info.max_tokens)


def _token_text(tokenizer: Tokenizer, token_id: int | None) -> str:
    return "" if token_id is None else tokenizer.token_bytes(token_id, render_special=True).decode("utf-8", "replace")


def main() -> int:
    """The engine's child process, from its orders on stdin to its exit code."""
    from stoker.engine.process import serve_engine

    level = os.environ.get("STOKER_LOG_LEVEL", "warning").upper()
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s engine %(name)s: %(message)s")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the cores belong to the forward pass
    return serve_engine(build_engine)


if __name__ == "__main__":
    sys.exit(main())
