"""Which projector a model of ours is served with, and the encoder for it. It starts no process."""

from __future__ import annotations

import logging
import sys
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.backends.cores import usable_cores
from stoker.cache.fingerprint import WeightFile, fingerprint
from stoker.engine.config import EngineConfig
from stoker.errors import ConfigError
from stoker.lazy import lazy_module
from stoker.models.cache import cache_dir
from stoker.models.projector import find_projector, read_projector

if TYPE_CHECKING:
    from stoker.media import encoder
else:
    encoder = lazy_module("stoker.media.encoder")  # for models that see

logger = logging.getLogger(__name__)

_VERSION = "mtmd 1"
_PROGRAM = "stoker.loading.encode_program"
_LIBRARIES = {"PIL": "stoker[images]", "av": "stoker[audio]", "llama_cpp": "stoker[llama]"}


def usable_projector(config: EngineConfig) -> Path | None:
    """The projector that `config.model_path` is served with by an engine of ours; None = text only.

    Raises:
        ModelFileNotFound: the file that `mmproj` names is not there.
        ConfigError: it is no projector, or a library is missing that it needs.
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
    """The libraries without which nothing can be done with a projector.

    Without the one that decodes recordings, a projector for both kinds is used for images.
    """
    return "av" if read_projector(projector).kinds == ("audio",) else "PIL", "llama_cpp"


def create_encoder(config: EngineConfig) -> encoder.MediaEncoder | None:
    """What makes rows of files for the engines of a model; None = it takes text only. Nothing is started yet.

    Raises:
        ModelFileNotFound: the file that `mmproj` names is not there.
        ConfigError: it is no projector, or a library is missing that it needs.
    """
    if config.backend not in ("auto", "native", "llama") or not config.model_path.lower().endswith(".gguf"):
        return None
    path = usable_projector(config)
    if path is None:
        return None
    model = Path(config.model_path).absolute()
    limits = (config.image_min_tokens or 0, config.image_max_tokens or 0)
    arguments = map(str, (model, path, config.threads or usable_cores(), *limits))
    return encoder.MediaEncoder((sys.executable, "-m", _PROGRAM, *arguments), partial(_identity, path, limits))


def _identity(projector: Path, limits: tuple[int, int]) -> bytes:
    """The projector's whole content counts, as KV that was computed from its rows may be kept for years."""
    version = f"{_VERSION} {limits[0]}-{limits[1]}" if any(limits) else _VERSION
    return fingerprint([WeightFile.of(projector)], version, cache_dir() / "projectors.json")


@cache
def _warn_once(message: str) -> None:
    logger.warning("%s", message)
