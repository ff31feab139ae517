"""GGUF models on Stoker's own kernels for CPUs. The only room with `stoker._native`."""

from stoker.backends.native.backend import (
    KVType,
    NativeBackend,
    NativeOptions,
    check_supported,
    kv_element_bytes,
    spare_kv_tokens,
)

__all__ = ["KVType", "NativeBackend", "NativeOptions", "check_supported", "kv_element_bytes", "spare_kv_tokens"]
