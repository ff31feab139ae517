"""Builds engines and runtimes out of the rooms; knows every room and decides nothing they can decide themselves.

`python -m stoker.assembly` is the engine's child process: it is told on stdin what to build, see `engine.process`.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.core.scheduler import SchedulerConfig
from stoker.core.stages import Mark, no_mark
from stoker.engine.config import EngineConfig, SupervisionConfig, adapter_specs
from stoker.engine.engine import Engine
from stoker.engine.prompt import find_fill_tokens
from stoker.engine.protocol import EmbeddingCard, ModelCard
from stoker.engine.tiers import open_kv_store, ram_tier_mib
from stoker.errors import ConfigError
from stoker.loading import Loaded, check_backend, load_model, load_scripted
from stoker.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from stoker.cache.slot_files import SlotFiles
    from stoker.cache.store import KVStore
    from stoker.models.progress import Progress
    from stoker.runtime.base import Runtime
    from stoker.runtime.llama_server.config import RuntimeConfig
    from stoker.runtime.replica_config import ReplicaConfig
    from stoker.sampling.row_kernels import RowKernels
    from stoker.text.volatile import VolatileHeaders


logger = logging.getLogger(__name__)


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
        loaded.adapters.load(adapter_specs(config))
        scheduling = _scheduling(config, loaded)
        engine = Engine(
            loaded.backend,
            loaded.tokenizer,
            config=scheduling,
            defaults=loaded.defaults,
            mark=mark,
            kv_port=loaded.kv_port,
            maxima_port=loaded.maxima_port,
            kv_store=_kv_store(config, loaded),
            slot_files=_slot_files(config, loaded),
            embedder=loaded.embedder,
            adapters=loaded.adapters,
            row_kernels=_row_kernels(),
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


def create_runtime(
    engine: EngineConfig,
    volatile: VolatileHeaders,
    supervision: SupervisionConfig,
    replicas: ReplicaConfig | None = None,
    runtime_config: RuntimeConfig | None = None,
) -> Runtime:
    """One model, in one child process or in several replicas of it. Nothing is started yet.

    Args:
        engine: of the model as a whole, see `share_of`; with the file on this disk.
        volatile: what is dropped from the head of system prompts.
        supervision: of each child.
        replicas: how many; not given: one.
        runtime_config: who computes; not given: an engine of ours.

    Raises:
        ConfigError: there is not enough to share.
    """
    from stoker.engine.client import EngineClient
    from stoker.engine.supervisor import same_sizes
    from stoker.runtime.local import LocalRuntime
    from stoker.runtime.replicas import ReplicatedRuntime

    def one(config: EngineConfig, *, repeats: bool) -> Runtime:
        if runtime_config is not None and runtime_config.runtime == "llama-server":
            return _llama_server(config, volatile, supervision, runtime_config, repeats=repeats)
        return LocalRuntime(EngineClient(config, supervision=supervision, repeats=repeats), volatile)

    alone = one(engine, repeats=True)  # it also says what cannot be had, whoever computes in the end
    if replicas is None or replicas.max_replicas == 1:
        return alone
    shares = _shares(engine, replicas.max_replicas)

    def make(number: int, first: ModelCard | None) -> Runtime:
        return one(shares[number] if first is None else same_sizes(shares[number], first), repeats=False)

    return ReplicatedRuntime(make, replicas, restart_wait_s=supervision.restart_wait_s)


def _llama_server(
    engine: EngineConfig,
    volatile: VolatileHeaders,
    supervision: SupervisionConfig,
    runtime_config: RuntimeConfig,
    *,
    repeats: bool,
) -> Runtime:
    """Raises ConfigError if something is asked for that only engines of ours have."""
    from stoker.runtime.llama_server.runtime import LlamaServerRuntime

    return LlamaServerRuntime(engine, runtime_config, supervision=supervision, volatile=volatile, repeats=repeats)


def _shares(engine: EngineConfig, count: int) -> list[EngineConfig]:
    from stoker.backends.cores import usable_cores
    from stoker.models.memory import available_memory
    from stoker.runtime.shares import share_of

    num_cores, ram_mib = usable_cores(), ram_tier_mib(engine, available_memory())
    if (engine.threads or num_cores) < count:
        logger.warning("%d replicas of one thread each are more than the cores: they hold each other up", count)
    return [share_of(engine, number, count, num_cores=num_cores, ram_mib=ram_mib) for number in range(count)]


def check_unicode(engine: EngineConfig) -> None:
    """What the child is told, and what clients call the model, is JSON.

    Raises:
        ConfigError: the model's path or name is not valid Unicode.
    """
    for text in (engine.model, engine.model_path, engine.name):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"{text!r} is not valid UTF-8; rename the file or link to it", key="model") from error


def _load(config: EngineConfig, progress: Progress | None, mark: Mark) -> Loaded:
    check_backend(config)
    if config.backend == "scripted":
        return load_scripted(config)
    return load_model(local_model(config, progress=progress), progress, mark)


def _scheduling(config: EngineConfig, loaded: Loaded) -> SchedulerConfig:
    info = loaded.backend.info
    parallel = min(config.parallel, loaded.max_running or config.parallel)
    if parallel > info.num_slots:
        raise ConfigError(
            f"--parallel {parallel} is too much: {info.name} can run at most {info.num_slots} at the same time",
            key="parallel",
        )
    return SchedulerConfig(max_running=min(parallel, info.max_batch_tokens), max_waiting=config.max_queue)


def _row_kernels() -> RowKernels | None:
    """Whatever backend computes, rows are sampled by the native executor's code, if that was built here."""
    try:
        from stoker.backends.native.sampling import RowSampler
    except ImportError:
        return None
    return RowSampler()


def _kv_store(config: EngineConfig, loaded: Loaded) -> KVStore | None:
    from stoker.cache.fingerprint import WeightFile
    from stoker.models.memory import available_memory

    if loaded.kv_port is None:
        return None
    weights = [WeightFile.of(path) for path in loaded.weight_files]
    return open_kv_store(config, loaded.backend.info, weights, available_memory())


def _slot_files(config: EngineConfig, loaded: Loaded) -> SlotFiles | None:
    from stoker.cache.fingerprint import WeightFile, fingerprint
    from stoker.cache.slot_files import NOTES, SlotFiles

    if not config.slot_save_path:
        return None
    folder = Path(config.slot_save_path).expanduser()
    weights = [WeightFile.of(path) for path in loaded.weight_files]
    return SlotFiles(folder, partial(fingerprint, weights, loaded.backend.info.kv_format, folder / NOTES))


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
        adapters=loaded.adapters.cards(),
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
    return serve_engine(lambda config, progress: build_engine(config, progress=progress))


if __name__ == "__main__":
    sys.exit(main())
