"""GGUF models on Stoker's own kernels for CPUs. The only room with `stoker._native`."""

from stoker.backends.native.adapters import adapter_bytes
from stoker.backends.native.backend import (
    NativeBackend,
    NativeOptions,
    check_supported,
    context_bytes,
    kept_bytes,
    spare_kv_tokens,
)
from stoker.backends.native.kv_types import KVType

__all__ = [
    "KVType",
    "NativeBackend",
    "NativeOptions",
    "adapter_bytes",
    "check_supported",
    "context_bytes",
    "kept_bytes",
    "spare_kv_tokens",
]
