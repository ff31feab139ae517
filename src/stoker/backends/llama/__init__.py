"""GGUF models on libllama, through the low-level bindings of llama-cpp-python. The only room with ctypes."""

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
