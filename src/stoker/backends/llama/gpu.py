"""The GPUs that libllama can use. libllama is not loaded if it has no library for GPUs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec

from stoker.backends.llama.backend_files import backend_files
from stoker.backends.llama.native import library
from stoker.errors import ModelUnsupported

_BACKENDS = ("cuda", "hip", "metal", "musa", "opencl", "sycl", "vulkan", "cann")
_CHILD_S = 60.0
_MIB = 2**20
_GPU, _INTEGRATED = 1, 2
"""Values of `ggml_backend_dev_type`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GPU:
    """One GPU, with its memory at the time of the query."""

    name: str
    """libllama's name of the device, such as `CUDA0` or `Vulkan0`."""
    description: str
    free_bytes: int
    total_bytes: int
    shares_ram: bool
    """Whether the GPU is integrated and uses the machine's RAM."""

    def __str__(self) -> str:
        return f"{self.name} ({self.description}, {self.free_bytes // _MIB} of {self.total_bytes // _MIB} MiB free)"


@dataclass(frozen=True, slots=True, kw_only=True)
class GPUs:
    """All GPUs that libllama can use."""

    kind: str | None
    """The kind of GPU backend that libllama has, such as `cuda`, if there is a device for it."""
    devices: tuple[GPU, ...] = ()


_NONE = GPUs(kind=None)


def gpu_name() -> str | None:
    """The kind of GPU backend that libllama has, such as `cuda`, if it finds a device for it; else None."""
    built = built_for()
    return built if built is not None and library().llama_supports_gpu_offload() else None


@cache
def gpu_name_by_child() -> str | None:
    """`gpu_name` from a child process, cached: so a server need not load libllama and GPU drivers.

    Raises:
        ModelUnsupported: libllama cannot be used.
    """
    return None if built_for() is None else _ask_child().kind


def gpus() -> GPUs:
    """All GPUs with their present memory."""
    kind = gpu_name()
    return _NONE if kind is None else GPUs(kind=kind, devices=tuple(_devices()))


def gpus_by_child() -> GPUs:
    """`gpus` from a child process.

    Raises:
        ModelUnsupported: libllama cannot be used.
    """
    return _NONE if gpu_name_by_child() is None else _ask_child()


def built_for() -> str | None:
    """The kind of GPU backend for which libllama has a library, whether or not there is a device for it."""
    libraries = {path.name for path in backend_files()}
    return next((name for name in _BACKENDS if any(f"ggml-{name}" in library for library in libraries)), None)


def _ask_child() -> GPUs:
    command = (sys.executable, "-P", "-m", __name__)
    try:
        done = subprocess.run(command, capture_output=True, timeout=_CHILD_S, check=True)
        return msgspec.json.decode(done.stdout.splitlines()[-1], type=GPUs)
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError, IndexError) as error:
        raise ModelUnsupported(f"libllama cannot be asked whether it has a GPU: {error}") from error


def _devices() -> Iterator[GPU]:
    ggml: Any = library()._lib
    for name, restype, argtypes in (
        ("count", c_size_t, []),
        ("get", c_void_p, [c_size_t]),
        ("name", c_char_p, [c_void_p]),
        ("description", c_char_p, [c_void_p]),
        ("type", c_int, [c_void_p]),
        ("memory", None, [c_void_p, c_void_p, c_void_p]),
    ):
        function = getattr(ggml, f"ggml_backend_dev_{name}")
        function.restype, function.argtypes = restype, argtypes
    for index in range(ggml.ggml_backend_dev_count()):
        device = ggml.ggml_backend_dev_get(index)
        kind = ggml.ggml_backend_dev_type(device)
        if kind in (_GPU, _INTEGRATED):
            free, total = c_size_t(), c_size_t()
            ggml.ggml_backend_dev_memory(device, byref(free), byref(total))
            yield GPU(
                name=ggml.ggml_backend_dev_name(device).decode(errors="replace"),
                description=ggml.ggml_backend_dev_description(device).decode(errors="replace"),
                free_bytes=free.value,
                total_bytes=total.value,
                shares_ram=kind == _INTEGRATED,
            )


if __name__ == "__main__":
    print(msgspec.json.encode(gpus()).decode())
