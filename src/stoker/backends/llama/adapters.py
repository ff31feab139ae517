"""LoRA adapters of a `llama_model`: loaded, set for a context, freed. Which ones, others decide.

libllama has one set of adapters per context, which holds for everything that is computed with it.
"""

from __future__ import annotations

import os
import weakref
from ctypes import c_float
from pathlib import Path
from typing import Any

from stoker.backends.llama.native import library, log_lines
from stoker.backends.llama.weights import Weights
from stoker.core.batch import AdapterSet
from stoker.errors import AdapterInvalid, BackendError, ResourceExhausted

_MEMORY_MARKS = ("unable to allocate", "failed to allocate", "bad_alloc", "out of memory")


class LoraAdapters:
    """The LoRA adapters that are loaded for one model, and the set that applies in one context.

    Args:
        weights: of the model.
        context: the `llama_context`; its owner outlives this object.
    """

    def __init__(self, weights: Weights, context: int) -> None:
        self._lib = library()
        self._weights = weights
        self._context = context
        self._loaded: dict[str, _Adapter] = {}
        self._present: AdapterSet = ()

    def load(self, key: str, path: Path) -> None:
        """See `AdapterPort.load_adapter`."""
        assert key not in self._loaded, "loaded twice"
        self._loaded[key] = _Adapter(self._weights, path)

    def unload(self, key: str) -> None:
        """See `AdapterPort.unload_adapter`."""
        if any(key == present for present, _ in self._present):
            self.use(())
        self._loaded.pop(key).free()

    def use(self, adapters: AdapterSet) -> None:
        """What is computed from now on is computed with these.

        Raises:
            BackendError: libllama refuses.
        """
        if adapters == self._present:
            return
        pointers = [self._loaded[key].pointer for key, _ in adapters]
        handles = (self._lib.llama_adapter_lora_p_ctypes * len(pointers))(*pointers)
        scales = (c_float * len(pointers))(*(scale for _, scale in adapters))
        if self._lib.llama_set_adapters_lora(self._context, handles, len(pointers), scales):
            raise BackendError("libllama refuses a set of adapters")
        self._present = adapters


class _Adapter:
    """Owns one `llama_adapter_lora`, which belongs to a model and must not outlive it."""

    def __init__(self, weights: Weights, path: Path) -> None:
        lib = library()
        self._weights = weights
        with log_lines.capture_errors() as errors:
            self.pointer: Any = lib.llama_adapter_lora_init(weights.pointer, os.fsencode(path))
        if not self.pointer:
            raise _load_error(path, "; ".join(errors) or "no reason given")
        self.free = weakref.finalize(self, _free, weights, self.pointer)


def _free(weights: Weights, pointer: Any) -> None:
    """The model is alive: this call holds it."""
    assert weights.pointer
    library().llama_adapter_lora_free(pointer)


def _load_error(path: Path, reason: str) -> AdapterInvalid | ResourceExhausted:
    message = f"libllama cannot load the adapter {path}: {reason}"
    if any(mark in reason for mark in _MEMORY_MARKS):
        return ResourceExhausted(message, path=str(path))
    return AdapterInvalid(message, path=str(path))
