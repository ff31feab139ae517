"""Opens a model with the backend that shall compute it: of GGUF files Stoker's own executor wherever it can, else
libllama; of ONNX folders ONNX Runtime.

It says which, and why; what the engine does with the model is for `assembly` to arrange.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.backends.base import AdapterPort, Backend, Embedder, KVPort, MaximaPort
from stoker.core.embedding import Pooling
from stoker.core.params import SamplingParams
from stoker.core.stages import Mark
from stoker.engine.adapters import Adapters, ReadAdapter
from stoker.engine.config import EngineConfig
from stoker.errors import ConfigError, ModelUnsupported
from stoker.loading_llama import attention_options, control_vector, device_options, only_llama
from stoker.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from stoker.models.gguf import GGUFFile
    from stoker.models.lora import LoraFile
    from stoker.models.memory_plan import MemoryPlan
    from stoker.models.progress import Progress
    from stoker.text.vocabulary import VocabularyTokenizer

logger = logging.getLogger(__name__)

_MAX_SLOTS = 256
_MIN_SLOTS = 16
_SLOTS_PER_RUNNING = 4
"""Retained conversations outnumber running ones: each slot without a request keeps a prefix for its next turn."""
_RECURRENT_SPARE_SLOTS = 2
"""A recurrent model holds a whole state per slot, used or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A backend with what its file says. Whoever has it closes the backend."""

    backend: Backend
    backend_name: str
    tokenizer: Tokenizer
    defaults: SamplingParams
    path: Path
    chat_template: str | None
    num_parameters: int
    size_bytes: int
    kv_port: KVPort | None = None
    """The backend again, if it can export KV."""
    maxima_port: MaximaPort | None = None
    """The backend again, if it looks at logits while it makes them."""
    embedder: Embedder | None = None
    """The backend's, if it can embed; the backend closes it."""
    adapters: Adapters = field(default_factory=Adapters)
    """None are loaded yet."""
    weight_files: tuple[Path, ...] = ()
    """What the weights were read from."""
    max_running: int | None = None
    """The model itself wants no more requests at the same time."""


@dataclass(frozen=True, slots=True)
class _Opened:
    """Who computes."""

    name: str
    backend: Backend
    kv_port: KVPort | None
    tokenizer: Tokenizer
    embedder: Embedder
    adapter_port: AdapterPort | None = None
    maxima_port: MaximaPort | None = None


def check_backend(config: EngineConfig) -> None:
    """Raises ModelUnsupported, before anything is downloaded, if the backend cannot run this model."""
    from stoker.models.catalog import CATALOG

    name = config.model_path or config.model
    if config.backend == "onnx" and (name in CATALOG or name.lower().endswith(".gguf")):
        raise ModelUnsupported(
            f"{name} is a GGUF file, and the backend `onnx` runs ONNX folders: use `auto`, or write one with "
            f"`stoker export {name} FOLDER`",
            backend=config.backend,
        )


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
    from stoker.models.description import describe
    from stoker.models.gguf import part_paths, read_gguf
    from stoker.models.lora import lora_target, read_lora
    from stoker.models.model_defaults import model_defaults

    path = Path(config.model_path)
    with ExitStack() as opened:
        files = [opened.enter_context(read_gguf(part)) for part in part_paths(path)]
        facts = describe(files[0])
        defaults = model_defaults(files[0]).filled_from(config.sampling)
        found = _open_backend(config, files, progress, mark)
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


def load_onnx(config: EngineConfig, mark: Mark) -> Loaded:
    """Opens the folder, or the graph, `config.model_path`. For the errors see `open_onnx`."""
    from stoker.loading_onnx import open_onnx

    if (reason := only_llama(config)) is not None:
        raise ConfigError(f"{config.model_path} is an ONNX model, and {reason}", key="backend")
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


def _open_backend(config: EngineConfig, files: list[GGUFFile], progress: Progress | None, mark: Mark) -> _Opened:
    """Who computes, and its tokenizer: what `config` says, or else the native executor wherever it can."""
    if config.backend == "llama":
        return _open_llama(config, files[0], progress, mark)
    try:
        if (reason := only_llama(config)) is not None:
            raise ModelUnsupported(reason)
        if config.backend == "auto":
            _check_no_gpu()
        tokenizer = _native_tokenizer(files)
    except ModelUnsupported as error:
        if config.backend == "native":
            raise
        return _open_llama_instead(config, files[0], progress, mark, error)
    return _open_native(config, files, tokenizer, progress, mark)


def _native_tokenizer(files: list[GGUFFile]) -> VocabularyTokenizer:
    """Raises ModelUnsupported if the native executor, or our tokenizer, does not know this model."""
    from stoker.backends.native import check_supported
    from stoker.models.embedding import read_pooling
    from stoker.models.vocabulary import read_vocabulary
    from stoker.text.vocabulary import build_tokenizer

    if read_pooling(files[0]) is Pooling.RANK:
        raise ModelUnsupported("the native executor has no classifiers, as a reranking model needs")
    check_supported(files)
    return build_tokenizer(read_vocabulary(files[0]))


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
) -> _Opened:
    from stoker.backends.native import NativeBackend, NativeOptions, kv_element_bytes, spare_kv_tokens
    from stoker.models.cache import packed_dir

    slots = num_slots(files[0], config.parallel)
    sizes = _plan_memory(
        config,
        files[0],
        kv_element_bytes=kv_element_bytes(config.kv_type),
        spare_kv_tokens=spare_kv_tokens(slots),
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
        backend = NativeBackend(files, options, eog_token_ids=tokenizer.eog_token_ids(), progress=packing, mark=mark)
    finally:
        if packing is not None:
            packing.close()
    logger.info("%s is computed by the native executor (%s)", config.model or files[0].path, backend.kernels)
    return _Opened("native", backend, backend, tokenizer, backend.embedder, maxima_port=backend)


def _open_llama(config: EngineConfig, gguf: GGUFFile, progress: Progress | None, mark: Mark) -> _Opened:
    from stoker.backends.llama import ENCODERS, LlamaBackend, LlamaOptions

    if gguf.architecture in ENCODERS:
        return _open_encoder(config, gguf)
    attention = attention_options(config)
    sizes = _plan_memory(config, gguf, kv_element_bytes=attention.element_bytes)
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
    return _Opened("llama", backend, backend, backend.tokenizer, backend.embedder, backend)


def _open_encoder(config: EngineConfig, gguf: GGUFFile) -> _Opened:
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
    return _Opened("llama", backend, None, backend.tokenizer, backend)


def _open_llama_instead(
    config: EngineConfig, gguf: GGUFFile, progress: Progress | None, mark: Mark, why: ModelUnsupported
) -> _Opened:
    try:
        opened = _open_llama(config, gguf, progress, mark)
    except ModelUnsupported as error:
        raise ModelUnsupported(f"{why.message}. {error.message}", **error.fields) from error
    level = logging.INFO if opened.kv_port is None else logging.WARNING  # it computes encoders anyway
    logger.log(level, "libllama computes: %s", why.message)
    return opened


def _adapters(port: AdapterPort | None, read: ReadAdapter) -> Adapters:
    return Adapters() if port is None else Adapters(port, read)


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
    config: EngineConfig, gguf: GGUFFile, *, kv_element_bytes: float = 2.0, spare_kv_tokens: int = 0
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
        num_replicas=config.num_replicas,
    )


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


def num_slots(gguf: GGUFFile, parallel: int) -> int:
    """Running and retained conversations of a model for so many requests at a time."""
    recurrent_keys = ("ssm.state_size", "wkv.head_size")
    if any(gguf.get_int(gguf.own_key(key)) is not None for key in recurrent_keys):
        return min(_MAX_SLOTS, parallel + _RECURRENT_SPARE_SLOTS)
    return min(_MAX_SLOTS, max(_MIN_SLOTS, _SLOTS_PER_RUNNING * parallel))
