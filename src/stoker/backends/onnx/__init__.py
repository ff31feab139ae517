"""Language models as ONNX graphs, on ONNX Runtime. The only room with `onnxruntime`."""

from stoker.backends.onnx.backend import OnnxBackend, OnnxOptions, max_logits_bytes
from stoker.backends.onnx.memory import spare_kv_tokens
from stoker.backends.onnx.signature import Signature, read_signature

__all__ = [
    "OnnxBackend",
    "OnnxOptions",
    "Signature",
    "max_logits_bytes",
    "read_signature",
    "spare_kv_tokens",
]
