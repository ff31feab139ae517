"""The weights of model files in memory: ownership of a `llama_model`, and how users of one file share it."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from ctypes import create_string_buffer
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from stoker.backends.llama.native import library, log_lines, logger
from stoker.backends.llama.options import DeviceOptions
from stoker.errors import ModelError, ModelFileInvalid, ModelFileNotFound, ModelUnsupported, ResourceExhausted

_MAGIC = b"GGUF"
_UNSUPPORTED_MARKS = ("unknown model architecture", "unknown pre-tokenizer type", "unknown tokenizer")
_MEMORY_MARKS = ("unable to allocate", "failed to allocate", "bad_alloc", "out of memory")


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Options that determine where weights are in memory. Users of a file share weights only if these are equal."""

    devices: DeviceOptions = field(default_factory=DeviceOptions)
    use_mmap: bool = True
    """Whether the file is mapped into memory instead of read."""


class Weights:
    """Owns one `llama_model`, which is freed with the last reference to this object.

    Raises:
        ModelError, ResourceExhausted: see `load_weights`.
    """

    def __init__(self, path: Path, options: LoadOptions, progress: LoadProgress | None = None) -> None:
        lib = library()
        self.path = path
        self.pointer = _load(path, options, progress)
        self._free = weakref.finalize(self, lib.llama_model_free, self.pointer)
        self.vocab: int | None = lib.llama_model_get_vocab(self.pointer)
        self.architecture = self._metadata("general.architecture")
        self.trained_context: int = lib.llama_model_n_ctx_train(self.pointer)
        is_hybrid: bool = lib.llama_model_is_hybrid(self.pointer)
        self.is_recurrent: bool = lib.llama_model_is_recurrent(self.pointer) or is_hybrid
        self.has_state_apart = is_hybrid and lib.llama_model_n_swa(self.pointer) == 0
        # A hybrid's window is of no concern: its sequences are neither copied nor cut back.
        self.window: int = 0 if self.is_recurrent else lib.llama_model_n_swa(self.pointer)
        self.has_sliding_window = self.window > 0
        self.row_width: int = lib.llama_model_n_embd_inp(self.pointer)
        self.is_causal = self._metadata(f"{self.architecture}.attention.causal") != "false"
        self._check_generates()

    def rank_template(self) -> str | None:
        """The model's template for a query and a document that are ranked; None if it has none."""
        text: bytes | None = library().llama_model_chat_template(self.pointer, b"rerank")
        return None if text is None else text.decode("utf-8", errors="replace")

    def _metadata(self, key: str) -> str:
        buffer = create_string_buffer(256)
        library().llama_model_meta_val_str(self.pointer, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", errors="replace")

    def _check_generates(self) -> None:
        """Refuses encoders, diffusion models, models without a vocabulary: they load, but later abort the process."""
        lib = library()
        generates = (
            self.vocab is not None
            and lib.llama_vocab_type(self.vocab) != lib.LLAMA_VOCAB_TYPE_NONE
            and lib.llama_model_has_decoder(self.pointer)
            and not lib.llama_model_has_encoder(self.pointer)
            and not lib.llama_model_is_diffusion(self.pointer)
        )
        if not generates:
            raise ModelUnsupported(
                f"{self.path} ({self.architecture}) is not a text-generating decoder model.", path=str(self.path)
            )


LoadProgress: TypeAlias = Callable[[int, int], None]
"""Called by the loading thread with the number of bytes loaded so far, and the total number."""
_Key: TypeAlias = tuple[str, int, int, int, int, LoadOptions]


class _WeightsCache:
    """Loaded weights by file identity and options, held weakly. Only one thread at a time loads the same weights."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: weakref.WeakValueDictionary[_Key, Weights] = weakref.WeakValueDictionary()
        self._gates: weakref.WeakValueDictionary[_Key, threading.Lock] = weakref.WeakValueDictionary()

    def get(self, path: Path, options: LoadOptions, progress: LoadProgress | None) -> Weights:
        real_path = Path(os.path.realpath(path))
        key = _identity(real_path, options)
        with self._lock:
            gate = self._gates.get(key)
            if gate is None:
                gate = self._gates[key] = threading.Lock()
        # The wait ends when the other thread has loaded the weights, which takes as long as the disk needs.
        with gate:
            weights = self._loaded.get(key)
            if weights is not None:
                logger.info("reusing the loaded weights of %s", real_path)
                return weights
            # Not the real path: libllama finds the other parts of a split model by the names of the links.
            weights = Weights(path, options, progress)
            if _identity(real_path, options) != key:
                raise ModelFileInvalid(f"{path} was changed while it was being loaded.", path=str(path))
            self._loaded[key] = weights
            return weights


_cache = _WeightsCache()


def load_weights(path: Path, options: LoadOptions, progress: LoadProgress | None = None) -> Weights:
    """Returns the weights of a GGUF file, which all users of the same file and options share within this process.

    Files are the same if their real path, inode, size and modification time are equal: a file that was replaced is
    loaded again, while earlier users keep the old weights.

    Raises:
        ModelFileNotFound: there is no such file.
        ModelFileInvalid: the file is not a GGUF, is truncated, contradicts itself, or cannot be read.
        ModelUnsupported: the architecture or tokenizer is unknown here, or llama-cpp-python is not installed.
        ResourceExhausted: the weights do not fit in memory.
    """
    _check_file(path)
    return _cache.get(path, options, progress)


def _identity(path: Path, options: LoadOptions) -> _Key:
    try:
        stat = path.stat()
    except FileNotFoundError as error:
        raise ModelFileNotFound(
            f"The model file {path} was removed while it was being loaded.", path=str(path)
        ) from error
    return (str(path), stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, options)


def _check_file(path: Path) -> None:
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except FileNotFoundError as error:
        raise ModelFileNotFound(f"There is no model file at {path}.", path=str(path)) from error
    except OSError as error:
        raise ModelFileInvalid(f"{path} cannot be read: {error.strerror}.", path=str(path)) from error
    if magic != _MAGIC:
        raise ModelFileInvalid(f"{path} is not a GGUF file: it begins with {magic!r}.", path=str(path))


def _load(path: Path, options: LoadOptions, progress: LoadProgress | None) -> int:
    lib = library()
    params = lib.llama_model_default_params()
    held = [options.devices.apply(lib, params)]
    if progress is not None:
        params.progress_callback = _progress_callback(lib, path, progress)
        held.append(params.progress_callback)
    params.use_extra_bufts = not _has_amx()
    params.load_mode = lib.LLAMA_LOAD_MODE_AUTO if options.use_mmap else lib.LLAMA_LOAD_MODE_NONE
    with log_lines.capture_errors() as errors:
        pointer = lib.llama_model_load_from_file(os.fsencode(path), params)
    del held
    if not pointer:
        raise _load_error(path, "; ".join(errors) or "no reason given")
    return pointer


def _progress_callback(lib: Any, path: Path, progress: LoadProgress) -> Any:
    total = path.stat().st_size

    def tell(part: float, _user_data: object) -> bool:
        progress(round(part * total), total)
        return True  # go on

    return lib.llama_progress_callback(tell)


def _has_amx() -> bool:
    """Whether libllama was compiled for AMX, whose tensor layout must not be used.

    GCC before 13 drops most of the tile configuration (its `_tile_loadconfig` claims to read 8 bytes of the 64),
    and the first matrix product then kills the process: https://github.com/ggml-org/llama.cpp/issues/20824
    """
    return b"AMX_INT8 = 1" in library().llama_print_system_info()


def _load_error(path: Path, reason: str) -> ModelError | ResourceExhausted:
    message = f"libllama cannot load {path}: {reason}"
    if any(mark in reason for mark in _UNSUPPORTED_MARKS):
        return ModelUnsupported(message, path=str(path))
    if any(mark in reason for mark in _MEMORY_MARKS):
        return ResourceExhausted(message, path=str(path))
    return ModelFileInvalid(message, path=str(path))
