"""The ONNX backend: language models as ONNX graphs, on ONNX Runtime. No other folder imports `onnxruntime`."""

from stoker.backends.onnx.backend import OnnxBackend, OnnxOptions, max_logits_bytes
from stoker.backends.onnx.encoder import OnnxEncoder, OnnxEncoderOptions
from stoker.backends.onnx.encoder_signature import EncoderSignature, is_encoder, read_encoder_signature
from stoker.backends.onnx.families import Family, family_of
from stoker.backends.onnx.memory import spare_kv_tokens
from stoker.backends.onnx.row_maker import OnnxRowMaker
from stoker.backends.onnx.runtime import known_providers
from stoker.backends.onnx.signature import Signature, read_signature

__all__ = [
    "EncoderSignature",
    "Family",
    "OnnxBackend",
    "OnnxEncoder",
    "OnnxEncoderOptions",
    "OnnxOptions",
    "OnnxRowMaker",
    "Signature",
    "family_of",
    "is_encoder",
    "known_providers",
    "max_logits_bytes",
    "read_encoder_signature",
    "read_signature",
    "spare_kv_tokens",
]
