"""Whether libllama has a GPU to compute on. Where it cannot, finding out does not load it."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from stoker.backends.llama.native import library
from stoker.errors import ModelUnsupported

_BACKENDS = ("cuda", "hip", "metal", "musa", "opencl", "sycl", "vulkan", "cann")
_CHILD_S = 60.0


def gpu_name() -> str | None:
    """The kind of GPU backend that libllama was built with, such as `cuda`, if it finds a device for it; else None."""
    built = built_for()
    return built if built is not None and library().llama_supports_gpu_offload() else None


@cache
def gpu_name_by_child() -> str | None:
    """The same answer from a process of its own, once: a server does not load libllama and the drivers of GPUs.

    Raises:
        ModelUnsupported: libllama cannot be used.
    """
    if built_for() is None:
        return None
    command = (sys.executable, "-P", "-m", __name__)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_CHILD_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise ModelUnsupported(f"libllama does not tell whether it has a GPU here: {error}") from error
    return done.stdout.strip() or None


def built_for() -> str | None:
    """The kind of GPU backend that libllama was built with, whether there is a device for it or not."""
    spec = find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        return None
    libraries = {path.name for path in (Path(spec.origin).parent / "lib").glob("*ggml-*")}
    return next((name for name in _BACKENDS if any(f"ggml-{name}" in library for library in libraries)), None)


if __name__ == "__main__":
    print(gpu_name() or "")
