"""Decides which backend computes a model. Measuring and loading ask the same function, `chosen`.

```
          chosen: the configured loader, or the first of its kind that does not refuse
                 |                                 |
load_model: loader.open                  measure: loader.needs
```
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.core.stages import Mark
from stoker.engine.config import EngineConfig
from stoker.errors import ConfigError, ModelError, ModelUnsupported
from stoker.loading.loader import Loader

if TYPE_CHECKING:
    from stoker.engine.loaded import Loaded
    from stoker.loading.native import FindGPU
    from stoker.models.memory_plan import MemoryNeeds
    from stoker.models.progress import Progress

logger = logging.getLogger(__name__)

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Choice:
    """The loader of a model, and why others are not it. Its files are open only inside of `chosen`."""

    loader: Loader
    refusals: Sequence[ModelUnsupported | ConfigError] = ()
    """Of the loaders that are preferred to this one."""

    def open(self, progress: Progress | None, mark: Mark) -> Loaded:
        """Loads the model, see `Loader.open`. An error also gives the reasons for not using the preferred loaders."""
        try:
            loaded = self.loader.open(progress, mark)
        except (ModelError, ConfigError) as error:
            if not self.refusals:
                raise
            raise _joined([*self.refusals, error]) from error
        if self.refusals:
            level = logging.INFO if loaded.kv_port is None else logging.WARNING  # no other backend has encoders
            logger.log(level, "libllama computes: %s", _words(self.refusals))
        return loaded


def load_model(config: EngineConfig, progress: Progress | None, mark: Mark) -> Loaded:
    """Opens the model `config.model_path`.

    Args:
        config: its files are on this disk.
        progress: receives the number of bytes that are loaded or packed.
        mark: called at the end of each part of a step.

    Raises:
        ModelError: the model is missing, damaged, or no backend here runs it.
        ResourceExhausted: it does not fit into memory.
        ConfigError: the model cannot have a configured size or option.
    """

    def find_gpu() -> str | None:
        from stoker.backends.llama import gpu_name

        return gpu_name()

    with chosen(config, find_gpu) as choice:
        return choice.open(progress, mark)


def measure(config: EngineConfig) -> MemoryNeeds | None:
    """What loading `config.model_path` will take. `cache_ram` counts if it is given, and what a disk needs.

    Nothing is loaded into this process, neither weights nor libllama.

    Returns:
        None: it takes nothing that counts; it is a script for tests.

    Raises:
        ModelError: a file is missing or damaged, or no backend here runs the model.
        ConfigError: the model cannot have a configured size or option.
    """
    from stoker.engine.tiers import least_ram_mib

    def find_gpu() -> str | None:
        from stoker.backends.llama import gpu_name_by_child

        return gpu_name_by_child()

    with chosen(config, find_gpu) as choice:
        needs = choice.loader.needs()
    if needs is None:
        return None
    cache_bytes = least_ram_mib(config) * _MIB
    return replace(needs, backend=choice.loader.name, cache_bytes=cache_bytes, min_cache_bytes=cache_bytes)


@contextmanager
def chosen(config: EngineConfig, find_gpu: FindGPU) -> Generator[Choice]:
    """The one decision which backend computes `config.model_path`. The files of the model are open inside the block.

    Args:
        config: `backend` names a loader; with `auto` loaders are asked in order of preference.
        find_gpu: gives the kind of GPU that libllama can use on this machine; None = there is none.

    Raises:
        ModelError: a file is missing or damaged, or every loader refuses the model.
        ConfigError: an option is not for models of this kind.
    """
    with ExitStack() as opened:
        yield _first_willing(_loaders(config, find_gpu, opened))


def _first_willing(loaders: Iterator[Loader]) -> Choice:
    refusals: list[ModelUnsupported | ConfigError] = []
    for loader in loaders:
        refusal = loader.refusal()
        if refusal is None:
            return Choice(loader, refusals)
        refusals.append(refusal)
    raise _joined(refusals)


def _loaders(config: EngineConfig, find_gpu: FindGPU, opened: ExitStack) -> Iterator[Loader]:
    """The loaders that `config.backend` allows, preferred ones first. One is imported when it is asked."""
    from stoker.models.onnx_folder import is_onnx_model

    if config.backend == "scripted":
        from stoker.loading.scripted import ScriptedLoader

        return iter((ScriptedLoader(config),))
    is_onnx = is_onnx_model(Path(config.model_path))
    kind, names = ("an ONNX model", ("onnx",)) if is_onnx else ("a GGUF file", ("native", "llama"))
    if config.backend not in ("auto", *names):
        raise ModelUnsupported(
            f"{config.model_path} is {kind}, which the backend `{config.backend}` does not run; use `auto`",
            backend=config.backend,
        )
    return _onnx_loaders(config) if is_onnx else _gguf_loaders(config, find_gpu, opened)


def _onnx_loaders(config: EngineConfig) -> Iterator[Loader]:
    from stoker.loading.onnx import OnnxLoader

    yield OnnxLoader(config)


def _gguf_loaders(config: EngineConfig, find_gpu: FindGPU, opened: ExitStack) -> Iterator[Loader]:
    from stoker.loading.gguf import open_gguf

    model = open_gguf(config, opened)
    if config.backend in ("auto", "native"):
        from stoker.loading.native import NativeLoader

        yield NativeLoader(model, find_gpu)
    if config.backend in ("auto", "llama"):
        from stoker.loading.llama import LlamaLoader

        yield LlamaLoader(model)


def _joined(errors: Sequence[ModelError | ConfigError]) -> ModelError | ConfigError:
    """The last error, with the reasons of all."""
    *others, last = errors
    return type(last)(_words(errors), **last.fields) if others else last


def _words(errors: Sequence[ModelError | ConfigError]) -> str:
    return ". ".join(error.message for error in errors)
