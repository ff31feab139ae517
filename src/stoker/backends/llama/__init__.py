"""The llama backend: GGUF models on libllama, through llama-cpp-python's bindings. Only this folder calls libllama."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.lazy import lazy_names

if TYPE_CHECKING:
    from stoker.backends.llama.backend import LlamaBackend, LlamaOptions
    from stoker.backends.llama.control import ControlVector
    from stoker.backends.llama.encoder import ENCODERS, EncoderOptions, LlamaEncoder
    from stoker.backends.llama.gpu import GPU, GPUs, gpu_name, gpu_name_by_child, gpus, gpus_by_child
    from stoker.backends.llama.options import AttentionOptions, CacheType, DeviceOptions, FlashAttention, SplitMode
    from stoker.backends.llama.tokenizer import LlamaTokenizer

__all__ = [
    "ENCODERS",
    "GPU",
    "AttentionOptions",
    "CacheType",
    "ControlVector",
    "DeviceOptions",
    "EncoderOptions",
    "FlashAttention",
    "GPUs",
    "LlamaBackend",
    "LlamaEncoder",
    "LlamaOptions",
    "LlamaTokenizer",
    "SplitMode",
    "gpu_name",
    "gpu_name_by_child",
    "gpus",
    "gpus_by_child",
]

_HOMES = {
    "ENCODERS": "stoker.backends.llama.encoder",
    "GPU": "stoker.backends.llama.gpu",
    "GPUs": "stoker.backends.llama.gpu",
    "AttentionOptions": "stoker.backends.llama.options",
    "CacheType": "stoker.backends.llama.options",
    "ControlVector": "stoker.backends.llama.control",
    "DeviceOptions": "stoker.backends.llama.options",
    "EncoderOptions": "stoker.backends.llama.encoder",
    "FlashAttention": "stoker.backends.llama.options",
    "LlamaBackend": "stoker.backends.llama.backend",
    "LlamaEncoder": "stoker.backends.llama.encoder",
    "LlamaOptions": "stoker.backends.llama.backend",
    "LlamaTokenizer": "stoker.backends.llama.tokenizer",
    "SplitMode": "stoker.backends.llama.options",
    "gpu_name": "stoker.backends.llama.gpu",
    "gpu_name_by_child": "stoker.backends.llama.gpu",
    "gpus": "stoker.backends.llama.gpu",
    "gpus_by_child": "stoker.backends.llama.gpu",
}
"""The module of each public name. Names are imported on first use: many users need only a part without libllama."""

__getattr__ = lazy_names(__name__, _HOMES)
