"""Access to ONNX Runtime: its import, the choice of execution providers, and sessions that are shared in a process."""

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
"""ONNX Runtime's name of each execution provider, by the name that users give; the fastest first."""
_MEMORY_OF = {"tensorrt": "cuda", "cuda": "cuda", "rocm": "rocm", "migraphx": "rocm", "directml": "dml"}
"""The device memory in which a provider keeps tensors; providers that are not listed compute in host memory."""
ON_DEVICES = tuple(_MEMORY_OF)
"""Providers whose tensors are in device memory."""
_FATAL = 4
_SPIN_US = "400"
"""Microseconds that threads spin: about the time between two steps, which makes one stream a tenth faster. The default
of 1000 starves other threads on the same cores."""
_MIN_MAPPED = "1024"
"""Minimum size, in bytes, of constants that are written to the file of packed weights."""
_MAX_PACKED_BYTES = 32 << 30
"""Maximum size of all packed graphs together, in bytes."""
_MEMORY_MARKS = ("bad_alloc", "Failed to allocate", "out of memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """The options of a session. Users of a graph share a session only if all of their options are equal."""

    threads: int
    provider: str = "auto"
    """Execution provider: `auto` = the fastest available one; or names such as `cuda`, with commas, by preference."""
    device_id: int = 0
    """Which device of the provider computes."""
    failed: tuple[str, ...] = ()
    """Providers that failed while they computed; they are not tried again."""
    spins: bool = False
    """Whether threads spin for a moment before they sleep: about 8 % faster if the cores are otherwise idle."""
    packed_directory: Path | None = None
    """Directory of packed weights that several processes map. None = weights are packed in memory. Only for the CPU."""
    operators: Path | None = None
    """Library of operators for graphs with an `own_content`. Unused with a packed directory, as they pack weights."""


class Session:
    """A loaded graph, which several users may share. Runs may overlap; every user has its own I/O bindings.

    Args:
        graph: the file.
        options: the options of the session.

    Raises:
        ModelUnsupported, ModelFileInvalid, ResourceExhausted: see `open_session`.
    """

    def __init__(self, graph: GraphFile, options: SessionOptions) -> None:
        found = candidates(options.provider, runtime().get_available_providers())
        self._candidates = [name for name in found if name not in options.failed]
        self.provider = CPU
        self.inner: Any = self._load(graph, options)
        self.device = _MEMORY_OF.get(self.provider, CPU)
        """The memory in which this provider keeps tensors."""
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
    """A session on this provider; None, after a warning that names the reason and the next provider, if it fails."""
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
    """A session whose matrix products use Stoker's own operators; None if these are not available."""
    if graph.own_content is None or options.operators is None:
        return None
    try:
        return _create(graph.own_content, graph.weights_folder, options, CPU, operators=options.operators)
    except load_errors() as error:
        logger.info("ONNX Runtime computes the products of %s with its own kernels: %s", graph.path.name, error)
        return None


def _packed(graph: GraphFile, options: SessionOptions) -> Path | None:
    """The folder with the graph and its packed weights; None if no directory is given or it cannot be written."""
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
    """Creates a session. If `packs_into` is given, ONNX Runtime writes the packed weights there.

    Operators that `provider` does not support run on providers of `behind` with the same memory, else on the CPU.
    """
    ort = runtime()
    found = ort.SessionOptions()
    if operators is not None:
        found.register_custom_ops_library(os.fspath(operators))
    found.intra_op_num_threads = options.threads
    found.inter_op_num_threads = 1
    found.log_severity_level = _FATAL  # errors are raised, so the log need not repeat them
    found.add_session_config_entry("session.intra_op.allow_spinning", "1" if options.spins else "0")
    found.add_session_config_entry("session.intra_op.spin_duration_us", _SPIN_US)
    # External weight files are mapped; all processes that map them share the memory.
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
    """Whether the session's tensors are in host memory, where a part of a tensor can be bound."""
    return session.device == CPU


def candidates(policy: str, available: Sequence[str]) -> tuple[str, ...]:
    """The providers besides the CPU that may compute, in the order in which they are tried.

    ONNX Runtime lists the providers it was built with, even if their libraries are missing. So a provider that fails is
    followed by others: with `auto` by every other provider, with TensorRT by CUDA.

    Args:
        policy: `auto`, or names with commas between them.
        available: the providers of this build, by ONNX Runtime's names.

    Raises:
        ConfigError: no provider has this name.
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
    """The `names` that are names of providers, whether or not this machine has these providers."""
    return [name for name in names if name in _PROVIDERS]


def _meant(policy: str) -> str | None:
    """The name that a misspelled or differently capitalized name, or ONNX Runtime's own name, probably means."""
    known = {"auto": "auto", **{own.lower(): name for name, own in _PROVIDERS.items()}}
    known |= {name: name for name in _PROVIDERS} | {"gpu": "cuda"}
    close = get_close_matches(policy.lower(), known, n=1)
    return known[close[0]] if close else None


_Key: TypeAlias = tuple[str, int, int, int, int, SessionOptions]


class _SessionCache:
    """Open sessions by file identity and options, held weakly. A lock lets one thread open a session at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: weakref.WeakValueDictionary[_Key, Session] = weakref.WeakValueDictionary()

    def get(self, graph: GraphFile, options: SessionOptions) -> Session:
        # The wait ends when another thread has loaded its graph, which takes as long as the disk needs.
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
    """Returns a session, which all users of the same file with the same options share within this process.

    Raises:
        ModelUnsupported: ONNX Runtime is not installed, or cannot run this graph.
        ModelFileInvalid: the file is damaged.
        ResourceExhausted: the graph does not fit into memory.
        ConfigError: there is no such provider.
    """
    return _cache.get(graph, options)


def _identity(path: Path, options: SessionOptions) -> _Key:
    real = Path(os.path.realpath(path))
    stat = real.stat()
    return (str(real), stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, options)


@cache
def runtime() -> Any:
    """The module `onnxruntime`, imported on the first call.

    Raises:
        ModelUnsupported: the package is not installed.
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
    """All exception classes that ONNX Runtime raises, as they have no common base class."""
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
