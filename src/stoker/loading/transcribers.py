"""Configures the transcriber process of a Whisper model, and estimates its memory needs. It starts no process."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.backends.cores import usable_cores
from stoker.engine.config import EngineConfig
from stoker.errors import ConfigError
from stoker.models.memory_plan import MemoryNeeds
from stoker.models.whisper_folder import check_whisper_folder, is_whisper_folder, whisper_bytes

if TYPE_CHECKING:
    from stoker.media.transcriber import Transcriber

_PROGRAM = "stoker.loading.transcribe_program"


def transcribes(config: EngineConfig) -> bool:
    """Whether `config.model_path` is a model that transcribes speech (Whisper)."""
    return is_whisper_folder(Path(config.model_path))


def create_transcriber(config: EngineConfig) -> Transcriber:
    """The transcriber for the model `config.model_path`; its process is not started yet.

    Raises:
        ConfigError: a required library is not installed.
        ModelError: a file of the model is missing or damaged.
    """
    from stoker.media.transcriber import Transcriber

    missing = [module for module in ("faster_whisper", "av") if find_spec(module) is None]
    if missing:
        message = f"Whisper models need {missing[0]}, which is not installed: pip install 'stoker[audio]'"
        raise ConfigError(message, key="model")
    folder = Path(config.model_path).absolute()
    check_whisper_folder(folder)
    device = "cpu" if config.gpu_layers == 0 else "any"
    threads = str(config.threads or usable_cores())
    return Transcriber((sys.executable, "-m", _PROGRAM, str(folder), threads, device))


def measure_transcriber(config: EngineConfig) -> MemoryNeeds:
    """An estimate of the memory that the transcriber process takes."""
    weights, compute = whisper_bytes(Path(config.model_path))
    return MemoryNeeds(
        model=config.name or config.model,
        ctx_size=1,
        kv_tokens=1,
        parallel=1,
        spare_kv_tokens=0,
        weights_bytes=weights,
        kv_bytes_per_token=0,
        compute_bytes=compute,
        backend="whisper",
    )
