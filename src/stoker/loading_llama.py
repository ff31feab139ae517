"""What only libllama does with a GGUF model, from an engine's configuration to its options. It opens nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from stoker.engine.config import EngineConfig, llama_cache_types
from stoker.errors import ConfigError, ModelUnsupported

if TYPE_CHECKING:
    from stoker.backends.llama import AttentionOptions, ControlVector, DeviceOptions
    from stoker.models.gguf import GGUFFile

_ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")
_WINDOWED = ("gemma2", "gemma3")
_NO_WEIGHTS = frozenset({"F64", "I8", "I16", "I64"})
_NO_MATRICES = _NO_WEIGHTS | {"I32"}


def only_llama(config: EngineConfig) -> str | None:
    """What is asked for that no other backend does, in words; None = nothing."""
    if config.control_vector:
        return "control vectors are applied by libllama only"
    types = [f"--cache-type-{part}" for part in "kv" if getattr(config, f"cache_type_{part}") is not None]
    if types:
        return f"{types[0]} is an option of libllama; other backends have --kv-type"
    options = ("flash_attn", "gpu_layers", "split_mode", "main_gpu")
    named = [name for name in options if getattr(config, name) is not None]
    named += ["tensor_split"] if config.tensor_split else []
    return f"--{named[0].replace('_', '-')} is an option of libllama" if named else None


def refuse_what_kills_it(gguf: GGUFFile) -> None:
    """What libllama ends the process over, instead of refusing it.

    Raises:
        ModelUnsupported: the file has such a thing; the message names it.
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
    """Each layer may have a number of KV heads of its own, but its keys must have as many."""
    key = gguf.own_key("attention.head_count_kv")
    counts = gguf.get_ints(key) or []
    layers = {i: gguf.tensors.get(f"blk.{i}.attn_k.weight") for i in range(len(counts))}
    rows = {i: tensor.shape[-1] for i, tensor in layers.items() if tensor is not None and counts[i] > 0}
    if len({rows[i] / counts[i] for i in rows}) > 1:
        _refuse(gguf, f"`{key}` says other numbers of heads than its tensors have")


def _window_key(gguf: GGUFFile) -> str:
    return gguf.own_key("attention.sliding_window")


def _has_windowed_layer(gguf: GGUFFile) -> bool:
    """The pattern is a flag for each layer, or a period; all but the last layer of a period have the window."""
    pattern = f"{_window_key(gguf)}_pattern"
    flags = gguf.get_ints(pattern)
    return any(flags or [True]) if gguf.is_array(pattern) else flags != [1]


def _refuse(gguf: GGUFFile, why: str) -> NoReturn:
    raise ModelUnsupported(f"libllama cannot run {gguf.path}: {why}", path=str(gguf.path))


def attention_options(config: EngineConfig) -> AttentionOptions:
    """How libllama keeps keys and values.

    Raises:
        ConfigError: they cannot be kept so.
    """
    from stoker.backends.llama import AttentionOptions

    type_k, type_v = llama_cache_types(config, "libllama")
    return AttentionOptions(type_k=type_k, type_v=type_v, flash=config.flash_attn or "auto")


def device_options(config: EngineConfig) -> DeviceOptions:
    """Which devices libllama uses."""
    from stoker.backends.llama import DeviceOptions

    return DeviceOptions(
        gpu_layers=-1 if config.gpu_layers is None else config.gpu_layers,
        split_mode=config.split_mode or "layer",
        main_gpu=config.main_gpu or 0,
        tensor_split=tuple(float(part) for part in config.tensor_split.split(",") if part),
    )


def control_vector(config: EngineConfig, gguf: GGUFFile) -> ControlVector | None:
    """What is to be added to hidden states, if anything.

    Raises:
        ConfigError: a file cannot be used, or the layers do not exist.
    """
    if not config.control_vector:
        if config.control_vector_layers:
            raise ConfigError("`control_vector_layers` needs a control vector", key="control_vector_layers")
        return None
    from stoker.backends.llama import ControlVector
    from stoker.models.control_vector import parse_layers, read_control_vectors

    num_layers = gguf.require_int(gguf.own_key("block_count"))
    hidden_size = gguf.require_int(gguf.own_key("embedding_length"))
    first, last = parse_layers(config.control_vector_layers, num_layers)
    found = read_control_vectors(config.control_vector, num_layers=num_layers, hidden_size=hidden_size)
    return ControlVector(found.values, first, last, f"{found.identity} at {first}-{last}")
