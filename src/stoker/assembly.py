"""Builds engines and servers out of the rooms; knows every room and decides nothing they can decide themselves.

`python -m stoker.assembly` is the engine's child process: it is told on stdin what to build, see `engine.process`.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.backends.base import Backend
from stoker.core.params import SamplingParams
from stoker.core.scheduler import SchedulerConfig
from stoker.engine.config import EngineConfig, SupervisionConfig
from stoker.engine.engine import Engine
from stoker.engine.protocol import ModelCard
from stoker.errors import ConfigError, ModelUnsupported
from stoker.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from stoker.models.gguf import GGUFFile
    from stoker.models.progress import Progress
    from stoker.runtime.registry import Registry
    from stoker.server.config import ServerConfig

_MAX_SLOTS = 256
_MIN_SLOTS = 16
_SLOTS_PER_RUNNING = 4
"""Retained conversations outnumber running ones: each slot without a request keeps a prefix for its next turn."""
_RECURRENT_SPARE_SLOTS = 2
"""A recurrent model holds a whole state per slot, used or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    """A backend with what its file says."""

    backend: Backend
    backend_name: str
    tokenizer: Tokenizer
    defaults: SamplingParams
    path: Path
    chat_template: str | None
    num_parameters: int
    size_bytes: int


def build_engine(config: EngineConfig, *, progress: Progress | None = None) -> tuple[Engine, ModelCard]:
    """Loads a model and puts an engine in front of it.

    Args:
        config: `model` is resolved, and downloaded if necessary, unless `model_path` is given.
        progress: told about the download.

    Raises:
        ModelError: the model is missing, damaged, or nothing here runs it.
        ResourceExhausted: it does not fit into memory.
        ConfigError: a size cannot be had with this model.
    """
    loaded = _load(config, progress)
    is_built = False
    try:
        scheduling = _scheduling(config, loaded.backend)
        engine = Engine(loaded.backend, loaded.tokenizer, config=scheduling, defaults=loaded.defaults)
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

    _check_backend(config)
    if config.model_path or config.backend == "scripted":
        return config
    return msgspec.structs.replace(config, model_path=str(resolve(config.model, progress=progress)))


def create_registry(engine: EngineConfig, server: ServerConfig, supervision: SupervisionConfig) -> Registry:
    """The served models: one, whose engine will run in a supervised child process. Nothing is started yet.

    Args:
        engine: with the file on this disk, see `local_model`: a child downloads nothing.

    Raises:
        ConfigError: the model's path or name is not valid Unicode.
    """
    from stoker.engine.client import EngineClient
    from stoker.runtime.local import LocalRuntime
    from stoker.runtime.registry import Registry, ServedModel, served_names

    _check_unicode(engine)
    runtime = LocalRuntime(EngineClient(engine, supervision=supervision))
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


def _check_backend(config: EngineConfig) -> None:
    if config.backend in ("native", "onnx"):
        raise ModelUnsupported(
            f"the backend `{config.backend}` is not available in this version; use `auto` or `llama`",
            backend=config.backend,
        )


def _load(config: EngineConfig, progress: Progress | None) -> _Loaded:
    _check_backend(config)
    return (
        _load_scripted(config) if config.backend == "scripted" else _load_llama(local_model(config, progress=progress))
    )


def _load_llama(config: EngineConfig) -> _Loaded:
    from stoker.backends.llama import LlamaBackend, LlamaOptions
    from stoker.models.description import describe
    from stoker.models.gguf import read_gguf
    from stoker.models.memory import available_memory
    from stoker.models.memory_plan import plan
    from stoker.models.model_defaults import model_defaults

    path = Path(config.model_path)
    with read_gguf(path) as gguf:
        facts = describe(gguf)
        sizes = plan(
            gguf,
            ctx_size=config.ctx_size,
            kv_tokens=config.kv_tokens,
            parallel=config.parallel,
            available_bytes=available_memory(),
        )
        defaults = model_defaults(gguf).filled_from(config.sampling)
        num_slots = _num_slots(gguf, config.parallel)
    options = LlamaOptions(
        context_size=sizes.ctx_size, kv_tokens=sizes.kv_tokens, num_slots=num_slots, threads=config.threads
    )
    backend = LlamaBackend(path, options)
    return _Loaded(
        backend=backend,
        backend_name="llama",
        tokenizer=backend.tokenizer,
        defaults=defaults,
        path=path,
        chat_template=facts.chat_template,
        num_parameters=facts.num_parameters,
        size_bytes=facts.weights_bytes,
    )


def _load_scripted(config: EngineConfig) -> _Loaded:
    """No model at all, for tests: `scripted` babbles, any other name is what it always answers."""
    from stoker.backends.scripted import ScriptedBackend, ScriptedTokenizer, reply_with, scripted_info

    context_size = config.ctx_size or 512
    info = scripted_info(
        context_size=context_size,
        kv_tokens=config.kv_tokens or context_size * config.parallel,
        num_slots=max(_MIN_SLOTS, _SLOTS_PER_RUNNING * config.parallel),
    )
    next_token = None if config.model == "scripted" else reply_with(config.model)
    return _Loaded(
        backend=ScriptedBackend(info, next_token=next_token),
        backend_name="scripted",
        tokenizer=ScriptedTokenizer(),
        defaults=config.sampling,
        path=Path(config.model_path),
        chat_template=None,
        num_parameters=0,
        size_bytes=0,
    )


def _num_slots(gguf: GGUFFile, parallel: int) -> int:
    recurrent_keys = ("ssm.state_size", "wkv.head_size")
    if any(gguf.get_int(gguf.own_key(key)) is not None for key in recurrent_keys):
        return min(_MAX_SLOTS, parallel + _RECURRENT_SPARE_SLOTS)
    return min(_MAX_SLOTS, max(_MIN_SLOTS, _SLOTS_PER_RUNNING * parallel))


def _scheduling(config: EngineConfig, backend: Backend) -> SchedulerConfig:
    info = backend.info
    if config.parallel > info.num_slots:
        raise ConfigError(
            f"--parallel {config.parallel} is too much: {info.name} can run at most {info.num_slots} at the same time",
            key="parallel",
        )
    return SchedulerConfig(max_running=min(config.parallel, info.max_batch_tokens), max_waiting=config.max_queue)


def _card(config: EngineConfig, loaded: _Loaded, scheduling: SchedulerConfig) -> ModelCard:
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
    )


def _token_text(tokenizer: Tokenizer, token_id: int | None) -> str:
    return "" if token_id is None else tokenizer.token_bytes(token_id, render_special=True).decode("utf-8", "replace")


def main() -> int:
    """The engine's child process, from its orders on stdin to its exit code."""
    from stoker.engine.process import serve_engine

    level = os.environ.get("STOKER_LOG_LEVEL", "warning").upper()
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s engine %(name)s: %(message)s")
    return serve_engine(build_engine)


if __name__ == "__main__":
    sys.exit(main())
