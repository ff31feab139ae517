"""Quantizes GGUF files with libllama."""

from __future__ import annotations

from ctypes import byref
from pathlib import Path

from stoker.backends.llama.native import library, log_lines
from stoker.errors import BackendError

FILE_TYPES = {
    "Q4_0": 2,
    "Q4_1": 3,
    "F16": 1,
    "Q8_0": 7,
    "Q5_0": 8,
    "Q5_1": 9,
    "Q2_K": 10,
    "Q3_K_S": 11,
    "Q3_K_M": 12,
    "Q3_K_L": 13,
    "Q4_K_S": 14,
    "Q4_K_M": 15,
    "Q5_K_S": 16,
    "Q5_K_M": 17,
    "Q6_K": 18,
    "IQ4_NL": 25,
    "IQ4_XS": 30,
    "BF16": 32,
}
"""libllama's number of each kind of quantized file, by name."""


def quantize(source: Path, target: Path, kind: str, *, threads: int | None, requantizes: bool) -> None:
    """Writes `source` to `target` with weights of this kind.

    Args:
        source: a GGUF file.
        target: the file to write; it does not exist yet.
        kind: one of `FILE_TYPES`.
        threads: number of threads; None = as many as there are cores.
        requantizes: whether weights that are quantized already may be quantized again.

    Raises:
        BackendError: libllama cannot quantize the file.
        ModelUnsupported: libllama is not installed.
    """
    llama = library()
    params = llama.llama_model_quantize_default_params()
    params.ftype = FILE_TYPES[kind]
    params.nthread = threads or 0
    params.allow_requantize = requantizes
    with log_lines.capture_errors() as said:
        code = llama.llama_model_quantize(str(source).encode(), str(target).encode(), byref(params))
    if code:
        again = "" if requantizes else "; weights that are quantized already need --requantize"
        raise BackendError(f"libllama did not quantize {source} to {kind}: {'; '.join(said) or f'code {code}'}{again}")
