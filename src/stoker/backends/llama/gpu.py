"""Whether libllama has a GPU to compute on. Where it cannot, finding out does not load it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from stoker.backends.llama.native import library

_BACKENDS = ("cuda", "hip", "metal", "musa", "opencl", "sycl", "vulkan", "cann")


def gpu_name() -> str | None:
    """The kind of GPU backend that libllama was built with, such as `cuda`, if it finds a device for it; else None."""
    built = built_for()
    return built if built is not None and library().llama_supports_gpu_offload() else None


def built_for() -> str | None:
    """The kind of GPU backend that libllama was built with, whether there is a device for it or not."""
    spec = find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        return None
    libraries = {path.name for path in (Path(spec.origin).parent / "lib").glob("*ggml-*")}
    return next((name for name in _BACKENDS if any(f"ggml-{name}" in library for library in libraries)), None)
