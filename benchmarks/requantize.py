"""Writes a GGUF again in another quantisation, with libllama's own quantiser.

    python benchmarks/requantize.py smollm2 smollm2-q8_0.gguf --type Q8_0

From an already quantised file the result is worse than from the original weights: good for timing, not for answers.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
from pathlib import Path
from typing import Any

import llama_cpp

from stoker.models.store import resolve

TYPES = {
    "Q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0,
    "Q4_1": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_1,
    "Q5_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q5_0,
    "Q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0,
    "Q4_K_M": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M,
    "Q6_K": llama_cpp.LLAMA_FTYPE_MOSTLY_Q6_K,
    "F16": llama_cpp.LLAMA_FTYPE_MOSTLY_F16,
}


def _discard(level: int, text: bytes, data: int) -> None:
    """A line of libllama's log: there are hundreds, one per tensor."""


_log_callback: Any = llama_cpp.llama_log_callback
_DISCARD = _log_callback(_discard)


def requantize(source: Path, target: Path, quantization: str) -> None:
    """Writes `target`; tensors whose rows do not fill the type's blocks get the type that libllama falls back to.

    Raises:
        RuntimeError: libllama refused.
    """
    llama_cpp.llama_log_set(_DISCARD, ctypes.c_void_p(0))
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = TYPES[quantization]
    params.allow_requantize = True
    if llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.pointer(params)) != 0:
        raise RuntimeError(f"libllama could not write {target} as {quantization}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a GGUF file or a name")
    parser.add_argument("path", type=Path)
    parser.add_argument("--type", choices=TYPES, required=True)
    arguments = parser.parse_args()
    requantize(resolve(arguments.model), arguments.path, arguments.type)
    print(f"{arguments.path}: {arguments.path.stat().st_size / 2**20:.0f} MiB", file=sys.stderr)


if __name__ == "__main__":
    main()
