"""Builds engines out of the rooms. It knows every room, and decides nothing that a room can decide itself.

`python -m stoker.assembly` is the engine's child process: it is told on stdin what to build, see `engine.process`.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from contextlib import ExitStack, suppress
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.cache.fingerprint import WeightFile, fingerprint
from stoker.cache.slot_files import NOTES, SlotFiles
from stoker.core.params import SamplingParams
from stoker.core.scheduler import SchedulerConfig
from stoker.core.stages import Mark, no_mark
from stoker.engine.cards import EmbeddingCard, ModelCard
from stoker.engine.config import EngineConfig, adapter_specs
from stoker.engine.engine import Engine
from stoker.engine.loaded import Loaded
from stoker.engine.prompt import find_fill_tokens, find_markers
from stoker.engine.spare import IS_SPARE
from stoker.engine.template_file import configured_template
from stoker.engine.tiers import open_kv_store
from stoker.errors import ConfigError
from stoker.lazy import lazy_module
from stoker.loading.choosing import load_model
from stoker.loading.locating import local_model
from stoker.models.memory import available_memory
from stoker.text.chat_formats.table import check_tool_format
from stoker.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import logging.handlers as log_handlers

    from stoker.backends.native import extension
    from stoker.cache.store import KVStore
    from stoker.engine import process
    from stoker.loading import preparing
    from stoker.models.progress import Progress
    from stoker.sampling.row_kernels import RowKernels
else:
    extension = lazy_module("stoker.backends.native.extension")  # an engine does without it if it was not built
    log_handlers = lazy_module("logging.handlers")  # for servers that keep a log
    process = lazy_module("stoker.engine.process")  # for engines in a process of their own
    preparing = lazy_module("stoker.loading.preparing")

logger = logging.getLogger(__name__)

_USUAL = (
    "stoker.backends.llama.gpu",
    "stoker.backends.native",
    "stoker.backends.native.extension",
    "stoker.loading.gguf",
    "stoker.loading.native",
    "stoker.models.cache",
    "stoker.models.description",
    "stoker.models.memory",
    "stoker.models.memory_plan",
    "stoker.models.model_defaults",
    "stoker.models.onnx_folder",
    "stoker.models.vocabulary",
    "stoker.text.vocabulary.tokenizer",
)
"""Modules that nearly every model needs; a spare process imports them before it is told which model to load."""

_MAX_DRAFT = 15
"""Maximum number of drafted tokens. With the last entry, they fill the rows of a tile of the native executor."""
SWITCH_S = 0.0005
"""Time for which a thread that runs Python may delay the next step. Python's own 5 ms are two steps."""


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
    config = local_model(config, progress=progress)
    loaded = load_model(config, progress, mark)
    with ExitStack() as undo:
        undo.callback(loaded.close)
        loaded.adapters.load(adapter_specs(config))
        scheduling = _scheduling(config, loaded)
        if (kv_store := _kv_store(config, loaded)) is not None:
            undo.callback(kv_store.close)
        engine = Engine(
            loaded,
            scheduling,
            kv_store=kv_store,
            slot_files=_slot_files(config, loaded),
            row_kernels=_row_kernels(),
            lowers_apart=True,
            mark=mark,
        )
        undo.callback(engine.close)
        card = _card(config, loaded, scheduling)
        _warn_if_beyond_training(card)
        undo.pop_all()
    return engine, card


def _warn_if_beyond_training(card: ModelCard) -> None:
    if card.context_size > card.trained_context > 0:
        message = "the context size of %d tokens exceeds the %d that %s was trained for: long answers may make no sense"
        logger.warning(message, card.context_size, card.trained_context, card.name)


def _scheduling(config: EngineConfig, loaded: Loaded) -> SchedulerConfig:
    info = loaded.backend.info
    parallel = min(config.parallel, loaded.max_running or config.parallel)
    if parallel > info.num_slots:
        raise ConfigError(
            f"--parallel {parallel} is too high: {info.name} can run at most {info.num_slots} at the same time",
            key="parallel",
        )
    if config.max_draft and not info.is_batch_invariant:
        message = f"speculative decoding is available on the native backend only, not on {loaded.backend_name}"
        raise ConfigError(f"--max-draft {config.max_draft}: {message}", key="max_draft")
    return SchedulerConfig(
        max_running=min(parallel, info.max_batch_tokens),
        max_waiting=config.max_queue,
        max_draft=_MAX_DRAFT if config.max_draft is None else config.max_draft,
    )


def _row_kernels() -> RowKernels | None:
    """The sampler: the native executor's code, for every backend, if it was built here."""
    try:
        return extension.RowSampler()
    except ImportError:
        return None


def _kv_store(config: EngineConfig, loaded: Loaded) -> KVStore | None:
    if loaded.kv_port is None:
        return None
    weights = [WeightFile.of(path) for path in loaded.weight_files]
    return open_kv_store(config, loaded.backend.info, weights, available_memory())


def _slot_files(config: EngineConfig, loaded: Loaded) -> SlotFiles | None:
    if not config.slot_save_path:
        return None
    folder = Path(config.slot_save_path).expanduser()
    weights = [WeightFile.of(path) for path in loaded.weight_files]
    return SlotFiles(folder, partial(fingerprint, weights, loaded.backend.info.kv_format, folder / NOTES))


def _card(config: EngineConfig, loaded: Loaded, scheduling: SchedulerConfig) -> ModelCard:
    info, tokenizer, template = loaded.backend.info, loaded.tokenizer, configured_template(config)
    if config.tool_format:
        check_tool_format(config.tool_format)
    return ModelCard(
        name=config.name or config.model or info.name,
        backend=loaded.backend_name,
        architecture=info.architecture,
        path=str(loaded.path),
        vocab_size=info.vocab_size,
        trained_context=info.trained_context,
        context_size=info.context_size,
        kv_tokens=info.kv_tokens,
        most_kv_tokens=info.most_kv_tokens,
        parallel=scheduling.max_running,
        max_queue=scheduling.max_waiting,
        chat_template=loaded.chat_template if template is None else template,
        bos_token=_token_text(tokenizer, tokenizer.bos_token_id),
        eos_token=_token_text(tokenizer, tokenizer.eos_token_id),
        num_parameters=loaded.num_parameters,
        size_bytes=loaded.size_bytes,
        created=int(time.time()),
        fill_tokens=find_fill_tokens(tokenizer),
        embedding=_embedding_card(loaded),
        can_generate=info.can_generate,
        adapters=loaded.adapters.cards(),
        tool_format=config.tool_format,
        marker_tokens=find_markers(tokenizer),
        system=config.preset.system,
        can_constrain_calls=find_spec("llguidance") is not None,
        media=[] if loaded.projector is None else list(loaded.projector.kinds),
        row_width=0 if loaded.rows_port is None else loaded.rows_port.row_width,
        media_refusal=loaded.media_refusal,
        image_text=loaded.image_text,
        sampling=SamplingParams().completed(loaded.defaults, info.max_sequence_tokens),
        devices=list(loaded.devices),
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
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the cores belong to the forward pass
    sys.setswitchinterval(SWITCH_S)
    if os.environ.pop(IS_SPARE, ""):
        with suppress(ImportError):  # the code that needs the module will report that it is missing
            for module in _USUAL:
                import_module(module)
    return process.serve_engine(_build, _prepare)


def _prepare(model_path: str) -> None:
    preparing.prepare_gguf(Path(model_path))
    _trim_heap()


def _trim_heap() -> None:
    """Gives freed memory back to the system: reading a vocabulary frees half as much as it keeps, which the C library
    would otherwise hold back."""
    with suppress(ImportError):
        extension.trim_heap()


def _build(config: EngineConfig, progress: Progress) -> tuple[Engine, ModelCard]:
    level = os.environ.get("STOKER_LOG_LEVEL", "warning").upper()
    handlers: list[logging.Handler] = [logging.StreamHandler()]
    if log_file := os.environ.get("STOKER_LOG_FILE"):  # the server rotates it
        handlers.append(log_handlers.WatchedFileHandler(log_file, encoding="utf-8", delay=True))
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s engine %(name)s: %(message)s", handlers=handlers)
    built = build_engine(config, progress=progress)
    _trim_heap()
    return built


if __name__ == "__main__":
    sys.exit(main())
