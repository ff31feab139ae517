"""ONNX Runtime itself: how it is found, which of its providers compute, and sessions that replicas share."""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from itertools import takewhile
from logging import getLogger
from pathlib import Path
from typing import Any, TypeAlias, cast

from stoker.backends.onnx.file import GraphFile
from stoker.backends.onnx.packed_folder import MODEL, WEIGHTS, PackedFolders, fingerprint
from stoker.errors import ConfigError, ModelFileInvalid, ModelUnsupported, ResourceExhausted

logger = getLogger(__name__)

CPU = "cpu"
_PROVIDERS = {
    "tensorrt": "TensorrtExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "coreml": "CoreMLExecutionProvider",
    "rocm": "ROCMExecutionProvider",
    "migraphx": "MIGraphXExecutionProvider",
    "directml": "DmlExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    CPU: "CPUExecutionProvider",
}
"""What users call a provider, the fastest first, and what ONNX Runtime calls it."""
_MEMORY_OF = {"tensorrt": "cuda", "cuda": "cuda", "rocm": "rocm", "migraphx": "rocm", "directml": "dml"}
"""Where tensors lie that a provider keeps; the others compute in the machine's own memory."""
ON_DEVICES = tuple(_MEMORY_OF)
"""Providers whose tensors lie in a memory of their own."""
_FATAL = 4
_SPIN_US = "400"
"""About the time from one step to the next, worth a tenth of the speed of one stream; the default, a thousand, starves
other threads on the same cores."""
_MIN_MAPPED = "1024"
"""Bytes of a constant that is worth a place in the file of packed weights."""
_MAX_PACKED_BYTES = 32 << 30
"""What all packed graphs together may take."""
_MEMORY_MARKS = ("bad_alloc", "Failed to allocate", "out of memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """What changes how a graph is run: two users with other options do not share."""

    threads: int
    provider: str = "auto"
    """`auto` = the fastest that is there, or names such as `cuda`, with commas between them, in order of preference."""
    device_id: int = 0
    """Which of several devices of the provider."""
    failed: tuple[str, ...] = ()
    """Providers that have failed while they computed, and are not tried again."""
    spins: bool = False
    """Threads spin for a moment before they sleep: about 8 % faster, if the cores are otherwise idle."""
    packed_directory: Path | None = None
    """Where packed weights lie that several processes map. None = each packs in memory. For the CPU only."""
    operators: Path | None = None
    """A library of operators for graphs with an `own_content`. Not with a packed directory, as it packs for itself."""


class Session:
    """A loaded graph. Runs may overlap; every user binds for itself.

    Args:
        graph: the file.
        options: how to run it.

    Raises:
        ModelUnsupported, ModelFileInvalid, ResourceExhausted: see `open_session`.
    """

    def __init__(self, graph: GraphFile, options: SessionOptions) -> None:
        found = candidates(options.provider, runtime().get_available_providers())
        self._candidates = [name for name in found if name not in options.failed]
        self.provider = CPU
        self.inner: Any = self._load(graph, options)
        self.device = _MEMORY_OF.get(self.provider, CPU)
        """Where this provider keeps tensors."""
        self.device_id = options.device_id if self.device != CPU else 0
        if self.provider == CPU and options.device_id:
            logger.warning("device %d is ignored: the CPU is the only device", options.device_id)

    def _load(self, graph: GraphFile, options: SessionOptions) -> Any:
        for index, provider in enumerate(self._candidates):
            behind = self._candidates[index + 1 :]
            session = _on_device(graph, options, provider, behind)
            if session is not None:
                self.provider = provider
                return session
        return self._on_cpu(graph, options)

    def _on_cpu(self, graph: GraphFile, options: SessionOptions) -> Any:
        try:
            packed = _packed(graph, options)
            if packed is not None:
                return _create(os.fspath(packed / MODEL), packed, options, CPU)
            own = _with_operators(graph, options)
            if own is not None:
                return own
            return _create(_source(graph), graph.weights_folder, options, CPU)
        except load_errors() as error:
            raise _explain(graph.path, error) from error


def _on_device(graph: GraphFile, options: SessionOptions, provider: str, behind: Sequence[str]) -> Any:
    """A session that this provider computes, or None, with a warning that says why and what is tried instead."""
    try:
        session = _create(_source(graph), graph.weights_folder, options, provider, behind=behind)
        if session.get_providers()[0] == _PROVIDERS[provider]:
            return session
        reason: object = "its libraries cannot be loaded"
    except load_errors() as error:
        reason = error
    then = f"{behind[0]} is tried" if behind else "the CPU computes"
    logger.warning("the provider %s cannot run %s, %s: %s", provider, graph.path.name, then, reason)
    return None


def _source(graph: GraphFile) -> bytes | str:
    return graph.content or os.fspath(graph.path)


def _with_operators(graph: GraphFile, options: SessionOptions) -> Any:
    """A session whose products are computed by our operators, or None."""
    if graph.own_content is None or options.operators is None:
        return None
    try:
        return _create(graph.own_content, graph.weights_folder, options, CPU, operators=options.operators)
    except load_errors() as error:
        logger.info("ONNX Runtime computes the products of %s with its own kernels: %s", graph.path.name, error)
        return None


def _packed(graph: GraphFile, options: SessionOptions) -> Path | None:
    """The folder with the graph and its packed weights, if there is a place for it."""
    if options.packed_directory is None:
        return None
    folders = PackedFolders(options.packed_directory, _MAX_PACKED_BYTES)
    weights_bytes = sum(path.stat().st_size for path in graph.weight_files)
    name = fingerprint(graph, runtime().__version__)
    return folders.open(
        name, weights_bytes, lambda folder: _create(_source(graph), graph.weights_folder, options, CPU, folder) and None
    )


def _create(
    source: bytes | str,
    weights: Path,
    options: SessionOptions,
    provider: str,
    packs_into: Path | None = None,
    *,
    operators: Path | None = None,
    behind: Sequence[str] = (),
) -> Any:
    """A session; on the way to it, packed weights are written if it is said where to.

    Operators that `provider` does not have go to those of `behind` that share its memory, then to the CPU.
    """
    ort = runtime()
    found = ort.SessionOptions()
    if operators is not None:
        found.register_custom_ops_library(os.fspath(operators))
    found.intra_op_num_threads = options.threads
    found.inter_op_num_threads = 1
    found.log_severity_level = _FATAL  # what goes wrong is raised, and said once
    found.add_session_config_entry("session.intra_op.allow_spinning", "1" if options.spins else "0")
    found.add_session_config_entry("session.intra_op.spin_duration_us", _SPIN_US)
    # Weights in other files are mapped, and shared by all processes that map them.
    found.add_session_config_entry("session.model_external_initializers_file_folder_path", os.fspath(weights))
    if packs_into is not None:
        found.optimized_model_filepath = os.fspath(packs_into / MODEL)
        found.add_session_config_entry("session.optimized_model_external_initializers_file_name", WEIGHTS)
        found.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", _MIN_MAPPED)
        found.add_session_config_entry("session.save_external_prepacked_constant_initializers", "1")
    settings: dict[str, str] = {} if provider == CPU else {"device_id": str(options.device_id)}
    same = [name for name in behind if _MEMORY_OF.get(name) == _MEMORY_OF.get(provider, CPU)]
    chosen: list[object] = [(_PROVIDERS[name], settings) for name in (provider, *same)]
    if provider != CPU:
        chosen.append(_PROVIDERS[CPU])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ort.InferenceSession(source, found, providers=chosen)


def is_host_memory(session: Session) -> bool:
    """Its tensors lie in the machine's memory, where a part of one can be bound."""
    return session.device == CPU


def candidates(policy: str, available: Sequence[str]) -> tuple[str, ...]:
    """The providers besides the CPU that may compute, in the order in which they are tried.

    ONNX Runtime lists what it was built with, whether the libraries of a provider are there or not. So a provider that
    fails is followed by another: with `auto` by every other provider, with TensorRT by CUDA.

    Args:
        policy: `auto`, or names with commas between them.
        available: ONNX Runtime's names.

    Raises:
        ConfigError: there is no provider of this name anywhere.
    """
    if policy == "auto":
        return tuple(name for name, own in _PROVIDERS.items() if own in available and name != CPU)
    names = policy.split(",")
    if (unknown := next((name for name in names if name not in _PROVIDERS), None)) is not None:
        meant = _meant(unknown)
        hint = f" (did you mean {meant}?)" if meant else ""
        known = f"auto, {', '.join(_PROVIDERS)}"
        raise ConfigError(f"there is no provider {unknown!r}{hint}; known: {known}", key="provider")
    wanted = takewhile(lambda name: name != CPU, ("tensorrt", "cuda") if policy == "tensorrt" else names)
    found = tuple(name for name in wanted if _PROVIDERS[name] in available)
    for name in names:
        if _PROVIDERS[name] not in available:
            then = f"{found[0]} is tried" if found else "the CPU computes"
            logger.warning("this build of ONNX Runtime has no provider %s, %s", name, then)
    return found


def known_providers(names: Iterable[str]) -> list[str]:
    """The names among `names` that ONNX Runtime has a provider for, on one machine or another."""
    return [name for name in names if name in _PROVIDERS]


def _meant(policy: str) -> str | None:
    """Ours, for ONNX Runtime's own name, other capitals, or a slip."""
    known = {"auto": "auto", **{own.lower(): name for name, own in _PROVIDERS.items()}}
    known |= {name: name for name in _PROVIDERS} | {"gpu": "cuda"}
    close = get_close_matches(policy.lower(), known, n=1)
    return known[close[0]] if close else None


_Key: TypeAlias = tuple[str, int, int, int, int, SessionOptions]


class _SessionCache:
    """Sessions by file identity, held weakly, each opened by one thread at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: weakref.WeakValueDictionary[_Key, Session] = weakref.WeakValueDictionary()

    def get(self, graph: GraphFile, options: SessionOptions) -> Session:
        # The wait ends with the other thread's load, whose length only the disk knows.
        with self._lock:
            key = _identity(graph.path, options)
            session = self._open.get(key)
            if session is None:
                session = self._open[key] = Session(graph, options)
            else:
                logger.info("reusing the loaded weights of %s", graph.path)
            return session


_cache = _SessionCache()


def open_session(graph: GraphFile, options: SessionOptions) -> Session:
    """A session, shared within this process by all uses of the same file with the same options.

    Raises:
        ModelUnsupported: ONNX Runtime is not installed, or does not run this graph.
        ModelFileInvalid: it is damaged.
        ResourceExhausted: it does not fit into memory.
        ConfigError: there is no such provider.
    """
    return _cache.get(graph, options)


def _identity(path: Path, options: SessionOptions) -> _Key:
    real = Path(os.path.realpath(path))
    stat = real.stat()
    return (str(real), stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, options)


@cache
def runtime() -> Any:
    """The module `onnxruntime`.

    Raises:
        ModelUnsupported: it is not installed.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise ModelUnsupported(
            "ONNX models need ONNX Runtime, which is not installed: pip install 'stoker[onnx]'", package="onnxruntime"
        ) from error
    return cast(Any, onnxruntime)


@cache
def load_errors() -> tuple[type[Exception], ...]:
    """What ONNX Runtime raises: it has no common class for it."""
    state: Any = runtime().capi.onnxruntime_pybind11_state
    members: list[object] = [getattr(state, name) for name in dir(state)]
    own = [found for found in members if isinstance(found, type) and issubclass(found, Exception)]
    return (*own, RuntimeError, MemoryError)


def _explain(path: Path, error: Exception) -> ModelUnsupported | ModelFileInvalid | ResourceExhausted:
    reason = " ".join(str(error).split())
    message = f"ONNX Runtime cannot load {path}: {reason}"
    if isinstance(error, MemoryError) or any(mark in reason for mark in _MEMORY_MARKS):
        return ResourceExhausted(message, path=str(path))
    if type(error).__name__ in ("InvalidProtobuf", "InvalidGraph", "NoSuchFile"):
        return ModelFileInvalid(message, path=str(path))
    return ModelUnsupported(message, path=str(path))
