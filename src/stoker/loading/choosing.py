"""Decides which backend computes a model. `measure` and `load_model` both ask one function, `chosen`.

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
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.core.stages import Mark
from stoker.engine.config import EngineConfig
from stoker.engine.tiers import least_ram_mib
from stoker.errors import ConfigError, ModelError, ModelUnsupported
from stoker.lazy import lazy_module
from stoker.loading import gguf
from stoker.loading.loader import Loader, Refusal
from stoker.models.onnx_folder import is_onnx_model
from stoker.models.whisper_folder import is_whisper_folder

if TYPE_CHECKING:
    from stoker.engine.loaded import Loaded
    from stoker.loading import llama, native, onnx, scripted
    from stoker.models.memory_plan import MemoryNeeds
    from stoker.models.progress import Progress
else:
    # Each loader is imported when it is first used.
    llama = lazy_module("stoker.loading.llama")
    native = lazy_module("stoker.loading.native")
    onnx = lazy_module("stoker.loading.onnx")
    scripted = lazy_module("stoker.loading.scripted")

logger = logging.getLogger(__name__)

_MIB = 2**20


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
    with chosen(config, loads_libllama=True) as (loader, refusals):
        try:
            loaded = loader.open(progress, mark)
        except (ModelError, ConfigError) as error:
            if not refusals:
                raise
            raise _joined([*refusals, error]) from error
    if refusals:
        level = logging.INFO if loaded.kv_port is None else logging.WARNING  # no other backend has encoders
        logger.log(level, "libllama computes: %s", _words(refusals))
    return loaded


def measure(config: EngineConfig) -> MemoryNeeds | None:
    """The memory that loading `config.model_path` will take, including the minimum of the RAM tier.

    Neither weights nor libllama are loaded into this process.

    Returns:
        The memory needs; None for a script for tests, whose needs do not count.

    Raises:
        ModelError: a file is missing or damaged, or no backend here runs the model.
        ConfigError: the model cannot have a configured size or option.
    """
    with chosen(config, loads_libllama=False) as (loader, _):
        needs = loader.needs()
    if needs is None:
        return None
    cache_bytes = least_ram_mib(config) * _MIB
    return replace(needs, backend=loader.name, cache_bytes=cache_bytes, min_cache_bytes=cache_bytes)


@contextmanager
def chosen(config: EngineConfig, *, loads_libllama: bool) -> Generator[tuple[Loader, list[Refusal]]]:
    """Chooses the backend for `config.model_path`. The files of the model are open inside the `with` block.

    Args:
        config: `backend` names a loader; with `auto`, the loaders are asked in order of preference.
        loads_libllama: whether this process may load libllama to look for a GPU. If not, a child process does.

    Returns:
        The first loader that does not refuse the model, and the refusals of the loaders before it.

    Raises:
        ModelError: a file is missing or damaged, or every loader refuses the model.
        ConfigError: an option is not for models of this kind.
    """
    refusals: list[Refusal] = []
    with ExitStack() as opened:
        for loader in _loaders(config, opened, loads_libllama=loads_libllama):
            refusal = loader.refusal()
            if refusal is None:
                _check_draft(config, loader, refusals)
                yield loader, refusals
                return
            refusals.append(refusal)
    raise _joined(refusals)


def _check_draft(config: EngineConfig, loader: Loader, refusals: list[Refusal]) -> None:
    if config.draft_model and loader.name != "native":
        message = f"--draft-model is available on the native backend only, and {loader.name} computes this model"
        raise _joined([*refusals, ConfigError(message, key="draft_model")])


def _loaders(config: EngineConfig, opened: ExitStack, *, loads_libllama: bool) -> Iterator[Loader]:
    """The loaders that `config.backend` allows, in order of preference. Each is imported when it is reached."""
    if config.backend == "scripted":
        return iter((scripted.ScriptedLoader(config),))
    if is_whisper_folder(Path(config.model_path)):
        message = (
            f"{config.model_path} is a Whisper model, which generates no text: use `stoker transcribe`, or serve it"
        )
        raise ModelUnsupported(message, backend=config.backend)
    is_onnx = is_onnx_model(Path(config.model_path))
    kind, names = ("an ONNX model", ("onnx",)) if is_onnx else ("a GGUF file", ("native", "llama"))
    if config.backend not in ("auto", *names):
        raise ModelUnsupported(
            f"{config.model_path} is {kind}, which the backend `{config.backend}` does not run; use `auto`",
            backend=config.backend,
        )
    if is_onnx:
        return iter((onnx.OnnxLoader(config),))
    return _gguf_loaders(config, opened, loads_libllama=loads_libllama)


def _gguf_loaders(config: EngineConfig, opened: ExitStack, *, loads_libllama: bool) -> Iterator[Loader]:
    model = gguf.open_gguf(config, opened)
    if config.backend in ("auto", "native"):
        yield native.NativeLoader(model, loads_libllama=loads_libllama)
    if config.backend in ("auto", "llama"):
        yield llama.LlamaLoader(model, loads_libllama=loads_libllama)


def _joined(errors: Sequence[ModelError | ConfigError]) -> ModelError | ConfigError:
    """The last error, with the messages of all errors."""
    *others, last = errors
    return type(last)(_words(errors), **last.fields) if others else last


def _words(errors: Sequence[ModelError | ConfigError]) -> str:
    return ". ".join(error.message for error in errors)
