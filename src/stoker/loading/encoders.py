"""The projector of a model, and the encoder of images and recordings that uses it. It starts no process."""

from __future__ import annotations

import hashlib
import logging
import sys
from contextlib import suppress
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from stoker.backends.cores import usable_cores
from stoker.cache.fingerprint import WeightFile, fingerprint
from stoker.engine.config import EngineConfig
from stoker.errors import ConfigError, ModelError
from stoker.lazy import lazy_module
from stoker.models.cache import cache_dir
from stoker.models.onnx_folder import OnnxFolder, is_onnx_model, open_onnx_folder
from stoker.models.onnx_graph import read_onnx_graph
from stoker.models.onnx_vision import read_onnx_vision
from stoker.models.projector import find_projector, read_projector

if TYPE_CHECKING:
    from stoker.media import encoder
else:
    encoder = lazy_module("stoker.media.encoder")  # for models that see

logger = logging.getLogger(__name__)

_VERSION, _ONNX_VERSION = "mtmd 1", "onnx 1"
_PROGRAM = "stoker.loading.encode_program"
_LIBRARIES = {"PIL": "stoker[images]", "av": "stoker[audio]", "llama_cpp": "stoker[llama]"}


def usable_projector(config: EngineConfig) -> Path | None:
    """The projector for `config.model_path` in the built-in engine; None = text only.

    Raises:
        ModelFileNotFound: the file that `mmproj` names does not exist.
        ConfigError: the file is not a projector, or a library that it needs is missing.
    """
    path = find_projector(Path(config.model_path).absolute(), config.mmproj)
    missing = [] if path is None else [module for module in _needed(path) if find_spec(module) is None]
    if path is None or not missing:
        return path
    message = f"the projector needs a package that is not installed: pip install '{_LIBRARIES[missing[0]]}'"
    if config.mmproj != "auto":
        raise ConfigError(message, key="mmproj")
    _warn_once(f"{path.name} is not used: {message}")
    return None


def _needed(projector: Path) -> tuple[str, str]:
    """The libraries that a projector needs.

    Without the one for recordings, a projector for images and recordings is used for images only.
    """
    return "av" if read_projector(projector).kinds == ("audio",) else "PIL", "llama_cpp"


def create_encoder(config: EngineConfig) -> encoder.MediaEncoder | None:
    """The encoder of images and recordings for the engines of a model, not yet started; None = text only.

    Raises:
        ModelFileNotFound: the file that `mmproj` names does not exist.
        ConfigError: the file is not a projector, or a library that it needs is missing.
    """
    path = Path(config.model_path).absolute()
    if config.backend in ("auto", "native", "llama") and path.suffix.lower() == ".gguf":
        projector = usable_projector(config)
        return None if projector is None else _encoder(config, path, projector, _VERSION)
    if config.backend in ("auto", "onnx") and config.mmproj == "auto" and is_onnx_model(path):
        with suppress(ModelError):  # the engine says what is wrong
            return _of_folder(config, open_onnx_folder(path, config.onnx_variant))
    return None


def _of_folder(config: EngineConfig, folder: OnnxFolder) -> encoder.MediaEncoder | None:
    """The encoder of an ONNX folder. The engine has checked that it fits the model."""
    vision = read_onnx_vision(folder)
    if vision is None or find_spec("PIL") is None:
        return None
    settings = hashlib.sha256(msgspec.json.encode([vision.family, vision.pixels], order="sorted")).hexdigest()
    return _encoder(config, folder.graph, vision.path, f"{_ONNX_VERSION} {settings}")


def _encoder(config: EngineConfig, model: Path, projector: Path, version: str) -> encoder.MediaEncoder:
    limits = (config.image_min_tokens or 0, config.image_max_tokens or 0)
    version = f"{version} {limits[0]}-{limits[1]}" if any(limits) else version
    arguments = map(str, (model, projector, config.threads or usable_cores(), *limits))
    return encoder.MediaEncoder((sys.executable, "-m", _PROGRAM, *arguments), partial(_identity, projector, version))


def _identity(projector: Path, version: str) -> bytes:
    """A hash of the whole projector, because KV that was computed from its rows may be kept for years."""
    files = read_onnx_graph(projector).weight_files if projector.suffix == ".onnx" else (projector,)
    return fingerprint([WeightFile.of(file) for file in files], version, cache_dir() / "projectors.json")


@cache
def _warn_once(message: str) -> None:
    logger.warning("%s", message)
