"""GGUF models on libllama: which models it supports, how much memory they take, and how they are opened."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import NoReturn

from stoker.backends import llama
from stoker.core.stages import Mark
from stoker.engine.config import EngineConfig, llama_cache_types, tensor_overrides
from stoker.engine.loaded import Loaded
from stoker.errors import BackendError, ConfigError, ModelFileInvalid, ModelUnsupported, ResourceExhausted
from stoker.loading.gguf import GGUFModel, part_progress
from stoker.loading.loader import Refusal, asked_sizes, no_images
from stoker.models.control_vector import parse_layers, read_control_vectors
from stoker.models.gguf import GGUFFile
from stoker.models.memory import available_memory
from stoker.models.memory_plan import MemoryNeeds, MemoryPlan, memory_needs, state_bytes
from stoker.models.offload import LayerSizes, Offload, OwnMemory, layer_sizes, own_memory, shared_offload
from stoker.models.progress import Progress
from stoker.models.projector import Projector, projector_bytes

logger = logging.getLogger(__name__)

_NAME = "of encoders, libllama inside of Stoker"
_ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")
_WINDOWED = ("gemma2", "gemma3")
_NO_WEIGHTS = frozenset({"F64", "I8", "I16", "I64"})
_NO_MATRICES = _NO_WEIGHTS | {"I32"}


class LlamaLoader:
    """A GGUF model on libllama. Satisfies `Loader`.

    Args:
        model: the model, whose files stay open while the loader is used.
        loads_libllama: whether this process may load libllama to list devices; if not, a child process does.
    """

    name = "llama"

    def __init__(self, model: GGUFModel, *, loads_libllama: bool) -> None:
        self._loads_libllama = loads_libllama
        self._model = model
        self._config = model.config
        self._path = Path(model.config.model_path)

    def refusal(self) -> Refusal | None:
        """See `Loader`. libllama itself may refuse other files when it opens them."""
        if self._is_encoder and (refusal := no_images(self._config, _NAME)):
            return refusal
        try:
            refuse_what_kills_it(self._model.first)
        except ModelUnsupported as error:
            return error
        return None

    def needs(self) -> MemoryNeeds:
        """See `Loader`. What is placed on GPUs with their own memory (`devices`) does not count."""
        return replace(self._needs_on_cpu, devices=self._own_memory)

    @cached_property
    def _gpus(self) -> llama.GPUs:
        return llama.gpus() if self._loads_libllama else llama.gpus_by_child()

    @cached_property
    def _sizes(self) -> LayerSizes:
        return layer_sizes(self._model.first, host_patterns(self._config))

    @cached_property
    def _own_memory(self) -> OwnMemory | None:
        devices = [device for device in self._gpus.devices if not device.shares_ram]
        if not devices or self._config.num_gpu_layers == 0:
            return None
        return own_memory(self._sizes, devices, self._config.num_gpu_layers)

    @cached_property
    def _offload(self) -> Offload:
        needs, own = self._needs_on_cpu, self._own_memory
        if own is not None:
            return own.offload(needs, own.room)
        if not self._gpus.devices:
            return Offload(gpu_layers=0, num_layers=self._sizes.num_layers, device_bytes=0, needs=needs)
        return shared_offload(needs, self._sizes, self._config.num_gpu_layers)

    @property
    def _projector(self) -> Projector | None:
        """The projector; encoders of texts have none, even if one is beside the model."""
        return None if self._is_encoder else self._model.projector

    @cached_property
    def _needs_on_cpu(self) -> MemoryNeeds:
        if self._is_encoder:
            return memory_needs(self._model.first, **asked_sizes(self._config))
        needs = memory_needs(
            self._model.first,
            **asked_sizes(self._config),
            kv_element_bytes=attention_options(self._config).element_bytes,
            # Hybrid models have one additional sequence, for exports and imports of blocks.
            context_bytes=lambda _: (self._model.num_slots + 1) * state_bytes(self._model.first),
            adapter_bytes=self._model.adapter_bytes(_tensor_bytes),
        )
        path = None if self._projector is None else self._projector.path
        return replace(needs, compute_bytes=needs.compute_bytes + projector_bytes(path))

    def open(self, progress: Progress | None, mark: Mark) -> Loaded:
        """See `Loader`. An encoder has no KV port and takes no adapters."""
        self._model.warn_of_unused_options()
        return self._open_encoder() if self._is_encoder else self._open_decoder(progress, mark)

    @property
    def _is_encoder(self) -> bool:
        return self._model.first.architecture in llama.ENCODERS

    def _open_decoder(self, progress: Progress | None, mark: Mark) -> Loaded:
        placed = self._offload
        self._say_where(placed)
        try:
            with part_progress(progress, "loading the weights") as reading:
                backend = llama.LlamaBackend(self._path, self._options(placed), progress=reading, mark=mark)
        except (ModelFileInvalid, ResourceExhausted, BackendError) as error:
            if placed.gpu_layers == 0 or self._config.num_gpu_layers is not None:
                raise
            logger.warning("the GPU cannot be used for %s, so the CPU is: %s", self._model.title, error.message)
            placed = replace(placed, gpu_layers=0, device_bytes=0, needs=self._needs_on_cpu)
            with part_progress(progress, "loading the weights") as reading:
                backend = llama.LlamaBackend(self._path, self._options(placed), progress=reading, mark=mark)
        return Loaded(
            devices=self._devices(placed),
            backend=backend,
            kv_port=backend,
            rows_port=backend,
            projector=self._projector,
            embedder=backend.embedder,
            adapters=self._model.adapters(backend),
            backend_name=self.name,
            tokenizer=backend.tokenizer,
            **self._model.facts,
        )

    def _say_where(self, placed: Offload) -> None:
        """Logs a line if some layers do not fit into the GPU and `gpu_layers` is not configured."""
        if self._gpus.devices and self._config.num_gpu_layers is None and placed.gpu_layers < placed.num_layers:
            devices = ", ".join(map(str, self._gpus.devices))
            what = f"{placed.gpu_layers} of {placed.num_layers} layers fit into the GPU"
            logger.warning("%s: %s, the CPU computes the others: %s", self._model.title, what, devices)

    def _devices(self, placed: Offload) -> tuple[str, ...]:
        names = [f"{device.name} ({device.description})" for device in self._gpus.devices]
        layers = f"{placed.gpu_layers} of {placed.num_layers} layers"
        return (f"{', '.join(names)}: {layers}",) if names and placed.gpu_layers else ()

    def _options(self, placed: Offload) -> llama.LlamaOptions:
        plan = placed.needs.within(available_memory())
        return llama.LlamaOptions(
            context_size=plan.ctx_size,
            kv_tokens=plan.kv_tokens,
            num_slots=self._model.num_slots,
            whole_rows=0 if self._projector is None else self._projector.longest_whole,
            rotates_by_places=self._projector is not None and self._model.rotates_by_places,
            threads=self._config.threads,
            pooling=self._model.pooling,
            devices=replace(device_options(self._config), gpu_layers=placed.gpu_layers),
            attention=attention_options(self._config),
            control=control_vector(self._config, self._model.first),
        )

    def _open_encoder(self) -> Loaded:
        if self._config.lora or self._config.adapters or self._config.control_vector:
            message = f"{self._path} is an encoder, which supports neither adapters nor control vectors here"
            raise ConfigError(message, key="lora")
        gguf = self._model.first
        options = llama.EncoderOptions(
            # Many encoders have no embeddings for positions beyond the trained context.
            max_tokens=min(self._plan().ctx_size, gguf.require_int(gguf.own_key("context_length"))),
            pooling=self._model.pooling,
            threads=self._config.threads,
            devices=device_options(self._config),
        )
        backend = llama.LlamaEncoder(self._path, options)
        return Loaded(
            backend=backend,
            embedder=backend,
            backend_name=self.name,
            tokenizer=backend.tokenizer,
            **self._model.facts,
        )

    def _plan(self) -> MemoryPlan:
        return self.needs().within(available_memory())


def _tensor_bytes(gguf: GGUFFile) -> int:
    return sum(tensor.num_bytes for tensor in gguf.tensors.values())


def refuse_what_kills_it(gguf: GGUFFile) -> None:
    """Refuses files for which libllama would abort the process instead of reporting an error.

    Raises:
        ModelUnsupported: the file is such a file; the message names the reason.
    """
    scaling = gguf.get_str(gguf.own_key("rope.scaling.type"))
    if scaling not in (None, *_ROPE_SCALINGS):
        _refuse(gguf, f"its rope scaling `{scaling}` is none of {', '.join(_ROPE_SCALINGS)}")
    if gguf.architecture in _WINDOWED and gguf.get_int(_window_key(gguf)) and not _has_windowed_layer(gguf):
        _refuse(gguf, f"`{_window_key(gguf)}` is given, but no layer has such a window")
    _refuse_other_heads(gguf)
    for tensor in gguf.tensors.values():
        is_vector = len(tensor.shape) == 1 and tensor.name.endswith(("norm.weight", ".bias"))
        is_matrix = len(tensor.shape) > 1 and tensor.name.endswith(".weight")
        refused = _NO_MATRICES if is_matrix else _NO_WEIGHTS
        if tensor.type.name in refused or (is_vector and tensor.type.name != "F32"):
            _refuse(gguf, f"it does not compute with the tensor `{tensor.name}` of type {tensor.type.name}")


def _refuse_other_heads(gguf: GGUFFile) -> None:
    """Layers may have different numbers of KV heads, but the shapes of their key matrices must agree with them."""
    key = gguf.own_key("attention.head_count_kv")
    counts = gguf.get_ints(key) or []
    layers = {i: gguf.tensors.get(f"blk.{i}.attn_k.weight") for i in range(len(counts))}
    rows = {i: tensor.shape[-1] for i, tensor in layers.items() if tensor is not None and counts[i] > 0}
    if len({rows[i] / counts[i] for i in rows}) > 1:
        _refuse(gguf, f"`{key}` says other numbers of heads than its tensors have")


def _window_key(gguf: GGUFFile) -> str:
    return gguf.own_key("attention.sliding_window")


def _has_windowed_layer(gguf: GGUFFile) -> bool:
    """The pattern is a flag per layer, or a period, in which all layers but the last have the window."""
    pattern = f"{_window_key(gguf)}_pattern"
    flags = gguf.get_ints(pattern)
    return any(flags or [True]) if gguf.is_array(pattern) else flags != [1]


def _refuse(gguf: GGUFFile, why: str) -> NoReturn:
    raise ModelUnsupported(f"libllama cannot run {gguf.path}: {why}", path=str(gguf.path))


def attention_options(config: EngineConfig) -> llama.AttentionOptions:
    """The KV cache types and the use of flash attention.

    Raises:
        ConfigError: libllama does not support the types.
    """
    type_k, type_v = llama_cache_types(config, "libllama")
    return llama.AttentionOptions(type_k=type_k, type_v=type_v, flash=config.flash_attn or "auto")


def device_options(config: EngineConfig) -> llama.DeviceOptions:
    """The devices that libllama uses, and how weights are divided between them."""
    return llama.DeviceOptions(
        gpu_layers=-1 if config.num_gpu_layers is None else config.num_gpu_layers,
        split_mode=config.split_mode or "layer",
        main_gpu=config.main_gpu or 0,
        tensor_split=tuple(float(part) for part in config.tensor_split.split(",") if part),
        overrides=tuple((each.pattern, each.buffer) for each in tensor_overrides(config)),
    )


def host_patterns(config: EngineConfig) -> list[str]:
    """Patterns of the names of tensors that stay in host memory, whatever their layer is."""
    return [each.pattern for each in tensor_overrides(config) if each.buffer == "CPU"]


def control_vector(config: EngineConfig, gguf: GGUFFile) -> llama.ControlVector | None:
    """The configured control vector, which is added to hidden states; None = there is none.

    Raises:
        ConfigError: a file cannot be used, or the layers do not exist.
    """
    if not config.control_vector:
        if config.control_vector_layers:
            raise ConfigError("`control_vector_layers` needs a control vector", key="control_vector_layers")
        return None
    num_layers = gguf.require_int(gguf.own_key("block_count"))
    hidden_size = gguf.require_int(gguf.own_key("embedding_length"))
    first, last = parse_layers(config.control_vector_layers, num_layers)
    found = read_control_vectors(config.control_vector, num_layers=num_layers, hidden_size=hidden_size)
    return llama.ControlVector(found.values, first, last, f"{found.identity} at {first}-{last}")
