"""Opens a GGUF file with the backend that shall compute it: Stoker's own executor wherever it can, else libllama.

It says which, and why.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from stoker.backends.base import AdapterPort, Backend, Embedder, KVPort, MaximaPort
from stoker.core.embedding import Pooling
from stoker.core.stages import Mark
from stoker.engine.config import EngineConfig, adapter_specs
from stoker.errors import ConfigError, ModelError, ModelFileInvalid, ModelUnsupported, StokerError
from stoker.loading_llama import attention_options, control_vector, device_options, only_llama, refuse_what_kills_it
from stoker.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from stoker.models.gguf import GGUFFile
    from stoker.models.memory_plan import ContextBytes, MemoryPlan
    from stoker.models.progress import Progress
    from stoker.text.vocabulary import VocabularyTokenizer

logger = logging.getLogger(__name__)

_MAX_SLOTS = 256
_MIN_SLOTS = 16
_SLOTS_PER_RUNNING = 4
"""Retained conversations outnumber running ones: each slot without a request keeps a prefix for its next turn."""
_RECURRENT_SPARE_SLOTS = 2
"""A recurrent model holds a whole state per slot, used or not."""

_Version: TypeAlias = tuple[int, int, int, int]
"""What tells a file from others, and from itself at another time."""
_prepared: tuple[_Version, VocabularyTokenizer] | None = None
"""Of the main thread."""


@dataclass(frozen=True, slots=True)
class OpenedGGUF:
    """A backend, and what belongs to it. Whoever has it closes the backend."""

    name: str
    backend: Backend
    kv_port: KVPort | None
    tokenizer: Tokenizer
    embedder: Embedder
    adapter_port: AdapterPort | None = None
    maxima_port: MaximaPort | None = None


def open_gguf(config: EngineConfig, files: list[GGUFFile], progress: Progress | None, mark: Mark) -> OpenedGGUF:
    """Opens a model with what `config` says, or else with the native executor wherever it can.

    Args:
        config: `backend` is `auto`, `native` or `llama`.
        files: its parts in order; the caller closes them.
        progress: told how far packing is.
        mark: told when a part of a step has ended.

    Raises:
        ModelError: the model is damaged, or nothing here runs it.
        ResourceExhausted: it does not fit into memory.
        ConfigError: a size cannot be had with this model.
    """
    prepared = _take_prepared(files[0].path)
    if config.backend == "llama":
        return _open_llama(config, files[0], progress, mark)
    try:
        if (reason := only_llama(config)) is not None:
            raise ModelUnsupported(reason)
        if config.backend == "auto":
            _check_no_gpu()
        tokenizer = prepared or _native_tokenizer(files)
    except ModelUnsupported as error:
        if config.backend == "native":
            raise
        return _open_llama_instead(config, files[0], progress, mark, error)
    return _open_native(config, files, tokenizer, progress, mark)


def prepare_gguf(path: Path) -> None:
    """Makes the tokenizer of a model that is probably opened next: of a small model that is half of what opening takes.

    What is wrong with the file, whoever opens it will see.
    """
    global _prepared
    from stoker.models.gguf import part_paths, read_gguf

    with suppress(StokerError, OSError), ExitStack() as opened:
        version = _version(path)
        files = [opened.enter_context(read_gguf(part)) for part in part_paths(path)]
        _prepared = version, _native_tokenizer(files)


def _take_prepared(path: Path) -> VocabularyTokenizer | None:
    """What was prepared, if it is of this file as it is now. It is kept no longer."""
    global _prepared
    prepared, _prepared = _prepared, None
    with suppress(OSError):
        return prepared[1] if prepared is not None and prepared[0] == _version(path) else None
    return None


def _version(path: Path) -> _Version:
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _native_tokenizer(files: list[GGUFFile]) -> VocabularyTokenizer:
    """Raises ModelUnsupported if the native executor, or our tokenizer, does not know this model."""
    from stoker.backends.native import check_supported
    from stoker.models.embedding import read_pooling
    from stoker.models.vocabulary import read_vocabulary
    from stoker.text.vocabulary import build_tokenizer

    if read_pooling(files[0]) is Pooling.RANK:
        raise ModelUnsupported("the native executor has no classifiers, as a reranking model needs")
    check_supported(files)
    try:
        return build_tokenizer(read_vocabulary(files[0]))
    except ModelFileInvalid as error:
        if "path" in error.fields:
            raise
        path = str(files[0].path)
        raise ModelFileInvalid(f"{path} cannot be used: {error.message}", path=path) from error


def _check_no_gpu() -> None:
    from stoker.backends.llama import gpu_name

    name = gpu_name()
    if name is not None:
        raise ModelUnsupported(f"libllama can use a GPU here ({name}), and the native executor computes on CPUs")


def _open_native(
    config: EngineConfig,
    files: list[GGUFFile],
    tokenizer: VocabularyTokenizer,
    progress: Progress | None,
    mark: Mark,
) -> OpenedGGUF:
    from stoker.backends.native import (
        NativeBackend,
        NativeOptions,
        context_bytes,
        kv_element_bytes,
        spare_kv_tokens,
    )
    from stoker.models.cache import packed_dir
    from stoker.models.gguf import read_gguf

    slots = num_slots(files[0], config.parallel)
    sizes = _plan_memory(
        config,
        files[0],
        kv_element_bytes=kv_element_bytes(files, config.kv_type),
        spare_kv_tokens=spare_kv_tokens(slots),
        context_bytes=context_bytes(files, config.threads, slots),
        adapter_bytes=adapters_bytes(config, is_native=True),
    )
    options = NativeOptions(
        context_size=sizes.ctx_size,
        kv_tokens=sizes.kv_tokens,
        num_slots=slots,
        threads=config.threads,
        kv_type=config.kv_type,
        packed_directory=packed_dir(),
        pooling=_pooling(config, files[0]),
        embedding_suffix=_embedding_suffix(tokenizer),
    )
    packing = None if progress is None else _PartProgress(progress, "packing the weights")
    try:
        backend = NativeBackend(
            files,
            options,
            eog_token_ids=tokenizer.eog_token_ids(),
            progress=packing,
            open_file=read_gguf,
            mark=mark,
        )
    finally:
        if packing is not None:
            packing.close()
    logger.info("%s is computed by the native executor (%s)", config.model or files[0].path, backend.kernels)
    return OpenedGGUF("native", backend, backend, tokenizer, backend.embedder, backend, maxima_port=backend)


def _open_llama(config: EngineConfig, gguf: GGUFFile, progress: Progress | None, mark: Mark) -> OpenedGGUF:
    from stoker.backends.llama import ENCODERS, LlamaBackend, LlamaOptions

    refuse_what_kills_it(gguf)
    if gguf.architecture in ENCODERS:
        return _open_encoder(config, gguf)
    attention = attention_options(config)
    sizes = _plan_memory(
        config,
        gguf,
        kv_element_bytes=attention.element_bytes,
        adapter_bytes=adapters_bytes(config, is_native=False),
    )
    options = LlamaOptions(
        context_size=sizes.ctx_size,
        kv_tokens=sizes.kv_tokens,
        num_slots=num_slots(gguf, config.parallel),
        threads=config.threads,
        pooling=_pooling(config, gguf),
        devices=device_options(config),
        attention=attention,
        control=control_vector(config, gguf),
    )
    reading = None if progress is None else _PartProgress(progress, "loading the weights")
    try:
        backend = LlamaBackend(Path(config.model_path), options, progress=reading, mark=mark)
    finally:
        if reading is not None:
            reading.close()
    return OpenedGGUF("llama", backend, backend, backend.tokenizer, backend.embedder, backend)


def _open_encoder(config: EngineConfig, gguf: GGUFFile) -> OpenedGGUF:
    from stoker.backends.llama import EncoderOptions, LlamaEncoder

    if config.lora or config.adapters or config.control_vector:
        message = f"{config.model_path} is an encoder, which takes neither adapters nor control vectors here"
        raise ConfigError(message, key="lora")
    sizes = _plan_memory(config, gguf)
    # Positions beyond those that it was trained on have no embeddings in many of them.
    max_tokens = min(sizes.ctx_size, gguf.require_int(gguf.own_key("context_length")))
    options = EncoderOptions(
        max_tokens=max_tokens,
        pooling=_pooling(config, gguf),
        threads=config.threads,
        devices=device_options(config),
    )
    backend = LlamaEncoder(Path(config.model_path), options)
    return OpenedGGUF("llama", backend, None, backend.tokenizer, backend)


def _open_llama_instead(
    config: EngineConfig, gguf: GGUFFile, progress: Progress | None, mark: Mark, why: ModelUnsupported
) -> OpenedGGUF:
    try:
        opened = _open_llama(config, gguf, progress, mark)
    except (ModelError, ConfigError) as error:
        raise type(error)(f"{why.message}. {error.message}", **error.fields) from error
    level = logging.INFO if opened.kv_port is None else logging.WARNING  # it computes encoders anyway
    logger.log(level, "libllama computes: %s", why.message)
    return opened


def _pooling(config: EngineConfig, gguf: GGUFFile) -> Pooling:
    """What the user says, what the model says, or the mean. A classifier's scores cannot be pooled otherwise."""
    from stoker.models.embedding import read_pooling

    own = read_pooling(gguf)
    if config.pooling is None or own is Pooling.RANK:
        return own or Pooling.MEAN
    return Pooling(config.pooling)


def _embedding_suffix(tokenizer: VocabularyTokenizer) -> tuple[int, ...]:
    eos = tokenizer.eos_token_id
    return (eos,) if tokenizer.special.adds_eos and eos is not None else ()


def _plan_memory(
    config: EngineConfig,
    gguf: GGUFFile,
    *,
    kv_element_bytes: float = 2.0,
    spare_kv_tokens: int = 0,
    context_bytes: ContextBytes | None = None,
    adapter_bytes: int = 0,
) -> MemoryPlan:
    from stoker.models.memory import available_memory
    from stoker.models.memory_plan import plan

    return plan(
        gguf,
        ctx_size=config.ctx_size,
        kv_tokens=config.kv_tokens,
        parallel=config.parallel,
        available_bytes=available_memory(),
        kv_element_bytes=kv_element_bytes,
        spare_kv_tokens=spare_kv_tokens,
        context_bytes=context_bytes,
        adapter_bytes=adapter_bytes,
        num_replicas=config.num_replicas,
    )


def adapters_bytes(config: EngineConfig, *, is_native: bool) -> int:
    """What the adapters take that `config` names. One that cannot be read takes nothing: who loads it says why."""
    from stoker.models.gguf import read_gguf

    total = 0
    for spec in adapter_specs(config):
        with suppress(StokerError, OSError), read_gguf(Path(spec.path)) as file:
            total += _adapter_bytes(file, is_native=is_native)
    return total


def _adapter_bytes(file: GGUFFile, *, is_native: bool) -> int:
    if not is_native:
        return sum(tensor.num_bytes for tensor in file.tensors.values())
    from stoker.backends.native import adapter_bytes

    return adapter_bytes(file)


def num_slots(gguf: GGUFFile, parallel: int) -> int:
    """Running and retained conversations of a model for so many requests at a time."""
    recurrent_keys = ("ssm.state_size", "wkv.head_size")
    if any(gguf.get_int(gguf.own_key(key)) is not None for key in recurrent_keys):
        return min(_MAX_SLOTS, parallel + _RECURRENT_SPARE_SLOTS)
    return min(_MAX_SLOTS, max(_MIN_SLOTS, _SLOTS_PER_RUNNING * parallel))


class _PartProgress:
    """Tells a `Progress` how far a backend is with the weights."""

    def __init__(self, progress: Progress, label: str) -> None:
        self._progress = progress
        self._label = label
        self._num_done: int | None = None

    def __call__(self, num_done: int, total: int) -> None:
        if self._num_done is None:
            self._progress.start(total, self._label)
        self._progress.advance(num_done - (self._num_done or 0))
        self._num_done = num_done

    def close(self) -> None:
        self._progress.close()
