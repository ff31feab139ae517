"""The native backend: GGUF models on Stoker's own CPU kernels. No other folder imports `stoker._native`."""

from stoker.backends.native.adapters import adapter_bytes
from stoker.backends.native.backend import NativeBackend
from stoker.backends.native.drafter import drafter_bytes, reads_another_model
from stoker.backends.native.encoder import NativeEncoder
from stoker.backends.native.kv_types import KVType
from stoker.backends.native.needs import NativeNeeds, spare_kv_tokens
from stoker.backends.native.options import BATCH_TOKENS, Frame, NativeOptions
from stoker.backends.native.weights import pack_weights

__all__ = [
    "BATCH_TOKENS",
    "Frame",
    "KVType",
    "NativeBackend",
    "NativeEncoder",
    "NativeNeeds",
    "NativeOptions",
    "adapter_bytes",
    "drafter_bytes",
    "pack_weights",
    "reads_another_model",
    "spare_kv_tokens",
]
