"""Finds the files of a model on this disk, and downloads them if necessary. It does not open them."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import msgspec

from stoker.core.params import SamplingParams
from stoker.engine.config import EngineConfig, ModelPreset
from stoker.errors import ConfigError, InvalidInput, ModelError, ModelUnsupported
from stoker.lazy import lazy_module
from stoker.models.catalog import CATALOG

if TYPE_CHECKING:
    from stoker.models import presets, store
    from stoker.models.progress import Progress
else:
    # Lazy: an engine's process gets a path, and resolves no name.
    presets = lazy_module("stoker.models.presets")
    store = lazy_module("stoker.models.store")

logger = logging.getLogger(__name__)

SCRIPTED = "scripted"
"""Name of the model that needs no files."""


def local_model(config: EngineConfig, *, progress: Progress | None = None) -> EngineConfig:
    """Resolves the model of a configuration to a file on this disk, downloaded if necessary. Presets are expanded.

    Args:
        config: its `draft_model` is resolved, too.
        progress: receives the progress of downloads.

    Raises:
        ModelError: there is no such model, or it cannot be downloaded.
        ConfigError: a preset is invalid.
    """
    return with_local_draft(_with_local_file(config, progress), progress)


def local_folder(config: EngineConfig, *, progress: Progress | None = None) -> EngineConfig:
    """Resolves the model of a configuration to a folder on this disk, downloaded if necessary.

    Presets are expanded.

    Raises:
        ModelError: the repository has no such model, or cannot be downloaded.
        ConfigError: a preset is invalid.
    """
    config = with_preset(config)
    path = config.model_path or str(store.resolve_folder(config.model, progress=progress))
    return msgspec.structs.replace(config, model_path=path)


def with_local_draft(
    config: EngineConfig, progress: Progress | None = None, *, is_required: bool = True
) -> EngineConfig:
    """Resolves the draft model of a configuration to a file on this disk, downloaded if necessary.

    Args:
        config: its `draft_model` becomes a path.
        progress: receives the progress of the download.
        is_required: if False, a missing model causes a warning instead of an error, and `draft_model` becomes empty.

    Raises:
        ModelError: there is no such model, or it cannot be downloaded.
    """
    if not config.draft_model:
        return config
    try:
        path = store.resolve(config.draft_model, progress=progress)
    except ModelError as error:
        if not is_required:
            logger.warning("there is no draft model: --draft-model %s: %s", config.draft_model, error.message)
            return msgspec.structs.replace(config, draft_model="")
        raise type(error)(f"--draft-model {config.draft_model}: {error.message}", **error.fields) from error
    return msgspec.structs.replace(config, draft_model=str(path))


def _with_local_file(config: EngineConfig, progress: Progress | None) -> EngineConfig:
    config = with_preset(config)
    if config.backend == "auto" and (config.script or config.model == SCRIPTED):
        return msgspec.structs.replace(config, backend="scripted")
    _check_backend(config)
    if config.model_path or config.backend == "scripted":
        return config
    return msgspec.structs.replace(config, model_path=str(store.resolve(config.model, progress=progress)))


def with_preset(config: EngineConfig) -> EngineConfig:
    """Expands a preset: its base model and settings, if the model of the configuration is the name of a preset.

    Raises:
        ConfigError: the preset has an unknown sampling parameter, or one that is out of range.
    """
    name = config.model
    if config.model_path or not name or "/" in name or os.path.exists(name):
        return config
    preset = presets.read_presets().get(name.removesuffix(":latest"))
    return config if preset is None else _applied(preset, config)


def _applied(preset: presets.Preset, config: EngineConfig) -> EngineConfig:
    try:
        sampling = SamplingParams(**preset.sampling)
    except (TypeError, InvalidInput) as error:
        raise ConfigError(f"the preset {config.model!r} cannot be used: {error}", key="model") from error
    return msgspec.structs.replace(
        config,
        model=preset.model,
        name=config.name or config.model,
        preset=ModelPreset(system=preset.system, template=preset.template, sampling=sampling),
        lora=[*preset.lora, *config.lora],
        ctx_size=preset.ctx_size if config.ctx_size is None else config.ctx_size,
    )


def prepared_path(engine: EngineConfig) -> str:
    """The file for which an engine's process prepares the tokenizer (`preparing.prepare_gguf`); empty = none."""
    is_useful = engine.backend in ("auto", "native") and engine.model_path.lower().endswith(".gguf")
    return engine.model_path if is_useful else ""


def check_unicode(engine: EngineConfig) -> None:
    """Checks that names and paths can be sent as JSON, to the engine's process and to clients.

    Raises:
        ConfigError: the model's path or name is not valid Unicode.
    """
    for text in (engine.model, engine.model_path, engine.name):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"{text!r} is not valid UTF-8; rename the file or link to it", key="model") from error


def _check_backend(config: EngineConfig) -> None:
    """Raises ModelUnsupported, before anything is downloaded, if the backend cannot run this model."""
    name = config.model_path or config.model
    if config.backend == "onnx" and (name in CATALOG or name.lower().endswith(".gguf")):
        raise ModelUnsupported(
            f"{name} is a GGUF file, and the backend `onnx` runs ONNX folders: use `auto`, or write one with "
            f"`stoker export {name} FOLDER`",
            backend=config.backend,
        )
