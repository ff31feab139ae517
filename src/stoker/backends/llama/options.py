"""Options of libllama for the KV cache, attention, and the split of a model over devices. Names are llama.cpp's."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import Structure, addressof, c_char_p, c_float, c_size_t, c_void_p
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from stoker.errors import ConfigError

CacheType: TypeAlias = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
FlashAttention: TypeAlias = Literal["auto", "on", "off"]
SplitMode: TypeAlias = Literal["none", "layer", "row"]

_GGML_TYPES: Mapping[CacheType, int] = {
    "f32": 0,
    "f16": 1,
    "bf16": 30,
    "q8_0": 8,
    "q5_1": 7,
    "q5_0": 6,
    "q4_1": 3,
    "q4_0": 2,
    "iq4_nl": 20,
}
_BLOCK_BYTES: Mapping[CacheType, int] = {"q8_0": 34, "q5_1": 24, "q5_0": 22, "q4_1": 20, "q4_0": 18, "iq4_nl": 18}
"""Bytes of a block of 32 elements."""


class _Override(Structure):
    """libllama's struct `llama_model_tensor_buft_override`."""

    _fields_ = (("pattern", c_char_p), ("buffer_type", c_void_p))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionOptions:
    """The KV cache types and the kind of attention.

    Raises:
        ConfigError: the type of values is quantized in blocks, which needs flash attention, but that is off.
    """

    type_k: CacheType = "f16"
    type_v: CacheType = "f16"
    flash: FlashAttention = "auto"
    """Flash attention; `auto` = if the device supports it."""

    def __post_init__(self) -> None:
        if in_blocks(self.type_v) and self.flash == "off":
            message = f"values of type {self.type_v} need flash attention: leave out --flash-attn off"
            raise ConfigError(message, key="cache_type_v")

    @property
    def element_bytes(self) -> float:
        """Bytes of one element of the KV cache, on average over keys and values."""
        return (_element_bytes(self.type_k) + _element_bytes(self.type_v)) / 2

    def apply(self, lib: Any, params: Any) -> None:
        """Writes these options into a `llama_context_params`."""
        params.type_k, params.type_v = _GGML_TYPES[self.type_k], _GGML_TYPES[self.type_v]
        params.flash_attn_type = {
            "auto": lib.LLAMA_FLASH_ATTN_TYPE_AUTO,
            "on": lib.LLAMA_FLASH_ATTN_TYPE_ENABLED,
            "off": lib.LLAMA_FLASH_ATTN_TYPE_DISABLED,
        }[self.flash]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOptions:
    """The devices that hold the weights. Hashable: users of a file share weights only if these options are equal."""

    gpu_layers: int = -1
    """Number of layers on a GPU if libllama was built for one; -1 = all."""
    split_mode: SplitMode = "layer"
    """How several GPUs share the model: not at all, by layers, or by rows of each matrix."""
    main_gpu: int = 0
    """The GPU that is used with split mode `none`, and for parts that are not split."""
    tensor_split: tuple[float, ...] = ()
    """The share of the model on each GPU, in any unit; empty = in proportion to free memory."""

    overrides: tuple[tuple[str, str], ...] = ()
    """Patterns of tensor names, each with the buffer for these tensors, such as `CPU`, instead of their layer's."""

    def apply(self, lib: Any, params: Any) -> Any:
        """Writes these options into a `llama_model_params`. The caller keeps the result until the model is loaded.

        Raises:
            ConfigError: more parts than libllama has room for, or a buffer that it does not have.
        """
        params.n_gpu_layers = self.gpu_layers
        params.main_gpu = self.main_gpu
        params.split_mode = {
            "none": lib.LLAMA_SPLIT_MODE_NONE,
            "layer": lib.LLAMA_SPLIT_MODE_LAYER,
            "row": lib.LLAMA_SPLIT_MODE_ROW,
        }[self.split_mode]
        return self._apply_overrides(lib, params), self._apply_split(lib, params)

    def _apply_overrides(self, lib: Any, params: Any) -> Any:
        if not self.overrides:
            return None
        buffers = buffer_types(lib)
        unknown = [buffer for _, buffer in self.overrides if buffer not in buffers]
        if unknown:
            known = ", ".join(sorted(buffers))
            raise ConfigError(f"there is no buffer {unknown[0]!r} here; there are {known}", key="override_tensor")
        # The array ends with an entry of zeros.
        table = (_Override * (len(self.overrides) + 1))()
        for entry, (pattern, buffer) in zip(table, self.overrides, strict=False):
            entry.pattern, entry.buffer_type = pattern.encode(), buffers[buffer]
        params.tensor_buft_overrides = addressof(table)
        return table

    def _apply_split(self, lib: Any, params: Any) -> Any:
        if not self.tensor_split:
            return None
        num_devices = lib.llama_max_devices()
        if len(self.tensor_split) > num_devices:
            message = f"`tensor_split` has {len(self.tensor_split)} parts, but libllama has {num_devices} devices"
            raise ConfigError(message, key="tensor_split")
        parts = (c_float * num_devices)(*self.tensor_split)
        params.tensor_split = parts
        return parts


def buffer_types(lib: Any) -> dict[str, int]:
    """The buffer type of each device, in which tensors can be placed, by its name."""
    ggml = lib._lib
    for name, restype, argtypes in (
        ("ggml_backend_dev_count", c_size_t, []),
        ("ggml_backend_dev_get", c_void_p, [c_size_t]),
        ("ggml_backend_dev_buffer_type", c_void_p, [c_void_p]),
        ("ggml_backend_buft_name", c_char_p, [c_void_p]),
    ):
        function = getattr(ggml, name)
        function.restype, function.argtypes = restype, argtypes
    devices = map(ggml.ggml_backend_dev_get, range(ggml.ggml_backend_dev_count()))
    found = [ggml.ggml_backend_dev_buffer_type(device) for device in devices]
    return {ggml.ggml_backend_buft_name(buffer).decode(): buffer for buffer in found if buffer}


def in_blocks(kind: CacheType) -> bool:
    """Whether numbers of this type share scales. Values in blocks need flash attention."""
    return kind in _BLOCK_BYTES


def _element_bytes(kind: CacheType) -> float:
    if kind in _BLOCK_BYTES:
        return _BLOCK_BYTES[kind] / 32
    return 4.0 if kind == "f32" else 2.0
