"""Finds libraries of ggml's backends (such as Vulkan's) that are separate files, and makes libllama load them.

A libllama that was built with `GGML_BACKEND_DL` has all of these libraries in its folder. Any other libllama loads the
library that `GGML_BACKEND_PATH` names, as the programs of llama.cpp do.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from ctypes import c_char_p, c_size_t, c_void_p
from importlib.util import find_spec
from pathlib import Path
from typing import Any

logger = logging.getLogger("stoker.llama")

_NAMED = "GGML_BACKEND_PATH"


def backend_files() -> Iterator[Path]:
    """The libraries beside libllama, and the one that `GGML_BACKEND_PATH` names. It does not load libllama."""
    folder = library_folder()
    if folder is not None:
        yield from folder.glob("*ggml-*")
    if named := os.environ.get(_NAMED):
        yield Path(named)


def library_folder() -> Path | None:
    """The folder in which llama-cpp-python finds libllama; None = llama-cpp-python is not installed."""
    spec = find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        return None
    other = os.environ.get("LLAMA_CPP_LIB_PATH")
    return Path(other) if other else Path(spec.origin).parent / "lib"


def load_backend_files(libllama: Any) -> None:
    """Loads the libraries, so that libllama knows their devices. A library that cannot be used is only a warning,
    because the CPU works without it.

    Args:
        libllama: the library as a `ctypes` object.
    """
    libllama.ggml_backend_dev_count.restype = c_size_t
    if libllama.ggml_backend_dev_count() == 0:  # not even the CPU is built in
        libllama.ggml_backend_load_all_from_path.argtypes = [c_char_p]
        libllama.ggml_backend_load_all_from_path(os.fsencode(library_folder() or ""))  # the named one, too
    elif named := os.environ.get(_NAMED):
        libllama.ggml_backend_load.restype, libllama.ggml_backend_load.argtypes = c_void_p, [c_char_p]
        if libllama.ggml_backend_load(os.fsencode(named)) is None:
            logger.warning("%s=%s is not used: it is no backend of ggml for this libllama (see above)", _NAMED, named)
