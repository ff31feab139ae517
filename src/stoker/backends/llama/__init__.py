"""GGUF models on libllama, through the low-level bindings of llama-cpp-python. The only room with ctypes."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stoker.backends.llama.backend import LlamaBackend, LlamaOptions
    from stoker.backends.llama.control import ControlVector
    from stoker.backends.llama.encoder import ENCODERS, EncoderOptions, LlamaEncoder
    from stoker.backends.llama.gpu import gpu_name
    from stoker.backends.llama.options import AttentionOptions, CacheType, DeviceOptions, FlashAttention, SplitMode
    from stoker.backends.llama.tokenizer import LlamaTokenizer

__all__ = [
    "ENCODERS",
    "AttentionOptions",
    "CacheType",
    "ControlVector",
    "DeviceOptions",
    "EncoderOptions",
    "FlashAttention",
    "LlamaBackend",
    "LlamaEncoder",
    "LlamaOptions",
    "LlamaTokenizer",
    "SplitMode",
    "gpu_name",
]

_HOMES = {
    "ENCODERS": "encoder",
    "AttentionOptions": "options",
    "CacheType": "options",
    "ControlVector": "control",
    "DeviceOptions": "options",
    "EncoderOptions": "encoder",
    "FlashAttention": "options",
    "LlamaBackend": "backend",
    "LlamaEncoder": "encoder",
    "LlamaOptions": "backend",
    "LlamaTokenizer": "tokenizer",
    "SplitMode": "options",
    "gpu_name": "gpu",
}
"""Where each name lives. They are imported when first asked for: who needs no libllama asks only for little of it."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
