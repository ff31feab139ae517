"""Access to libllama: finds the bindings, starts the library once per process, and forwards its log to `logging`.

It contains nothing about models or contexts. Importing this module does not import `llama_cpp`.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from stoker.backends.llama.backend_files import load_backend_files
from stoker.errors import ModelUnsupported

logger = logging.getLogger("stoker.llama")
logger.addHandler(logging.NullHandler())

_CONTINUES = 5
_FALSE_ALARMS = (
    "> n_ctx_train",  # mistakes the size of the shared pool for the length of a sequence
    "using full-size SWA cache",  # intended: a window can then be cut and copied
)
_SPIN_COUNT = "1000"
"""Spins that take about the time from one tensor operation to the next."""
# libllama's INFO is a line per layer and buffer, its DEBUG one per tensor: each is one step lower here.
_LEVELS = {0: logging.INFO, 1: logging.DEBUG - 5, 2: logging.DEBUG, 3: logging.WARNING, 4: logging.ERROR}


class LogLines(threading.local):
    """Joins the pieces that libllama logs on one thread into whole lines.

    A piece is a whole line (it ends with a newline), the beginning of a line, or, at level 5, a continuation.
    """

    def __init__(self) -> None:
        self._level = logging.INFO
        self._pending = ""
        self._captured: list[str] | None = None

    def push(self, native_level: int, text: bytes) -> None:
        if native_level != _CONTINUES:
            self.flush()
            self._level = _LEVELS.get(native_level, logging.INFO)
        self._pending += text.decode("utf-8", errors="replace")
        if self._pending.endswith("\n"):
            self.flush()

    def flush(self) -> None:
        line, self._pending = self._pending.rstrip(), ""
        if not line:
            return
        if self._captured is not None and self._level >= logging.ERROR:
            self._captured.append(line)
        is_false_alarm = any(mark in line for mark in _FALSE_ALARMS)
        logger.log(logging.DEBUG if is_false_alarm else self._level, "%s", line)

    @contextmanager
    def capture_errors(self) -> Generator[list[str]]:
        """The error lines that this thread logs inside the block; they are logged as well."""
        outer, self._captured = self._captured, []
        try:
            yield self._captured
            self.flush()
        finally:
            self._captured = outer


log_lines = LogLines()

_start_lock = threading.Lock()
_log_callback: Any = None


def library() -> Any:
    """The low-level bindings `llama_cpp.llama_cpp`, with the library started.

    Typed `Any` because their annotations know neither that pointers are plain integers at run time nor buffers.

    Raises:
        ModelUnsupported: the bindings are not installed, or their native library cannot be loaded.
    """
    _bound_spinning()
    try:
        # The package is an optional extra, so it may be missing.
        from llama_cpp import llama_cpp
    except (ImportError, OSError, RuntimeError) as error:
        raise ModelUnsupported(
            f"The llama backend needs llama-cpp-python, which cannot be used here ({error}). "
            f"Install it with: pip install 'stoker[llama]'"
        ) from error
    if _log_callback is None:
        _start(llama_cpp)
    return llama_cpp


def log_callback() -> Any:
    """The log callback of libllama, for related libraries (libmtmd). `library` must have been called before."""
    return _log_callback


@contextmanager
def interrupts_held() -> Generator[None]:
    """Delays a Ctrl-C until the block ends: in a callback of native code, ctypes would swallow the KeyboardInterrupt.

    It has an effect only on the main thread, where Python runs signal handlers.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    held: list[FrameType | None] = []
    signal.signal(signal.SIGINT, lambda _, frame: held.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if held:
            handler(signal.SIGINT, held[-1])


def _bound_spinning() -> None:
    """Makes OpenMP's threads sleep soon when they wait for each other. OpenMP reads this once, when it is loaded.

    GCC's default is to spin for milliseconds. That works on an idle machine. But if another process needs a core,
    spinning threads keep the thread that they wait for from running: steps then take many times as long (docs/lab).
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPIN_COUNT)


def _start(llama_cpp: Any) -> None:
    global _log_callback
    with _start_lock:
        if _log_callback is not None:
            return
        callback = llama_cpp.llama_log_callback(_on_log)
        llama_cpp.llama_log_set(callback, None)
        llama_cpp.llama_backend_init()
        load_backend_files(llama_cpp._lib)
        # libllama keeps the pointer for ever, so the object must live as long.
        _log_callback = callback


def _on_log(level: int, text: bytes | None, _user_data: int | None) -> None:
    log_lines.push(level, text or b"")
