"""Folders with a Whisper model in CTranslate2's format. Nothing is loaded."""

from __future__ import annotations

from pathlib import Path

import msgspec

from stoker.errors import ModelFileInvalid, ModelFileNotFound, reason_of

_WEIGHTS, _SETTINGS, _TOKENIZER = "model.bin", "config.json", "tokenizer.json"
_MARK = b"WhisperSpec"
"""Name of the architecture, near the beginning of the weights."""
_HEAD_BYTES = 64
_COMPUTE = 2.2
"""Memory while it computes, as a multiple of the file; weights of 16 bits become numbers of 32 or 8."""
_LEAST_COMPUTE_BYTES = 256 << 20


def is_whisper_folder(path: Path) -> bool:
    """Whether a path is a folder with a Whisper model, as `ct2-transformers-converter` writes them."""
    try:
        with path.joinpath(_WEIGHTS).open("rb") as weights:
            return _MARK in weights.read(_HEAD_BYTES)
    except OSError:
        return False


def check_whisper_folder(folder: Path) -> None:
    """Raises an error if a file is missing or damaged without which the model would look for it elsewhere.

    Raises:
        ModelFileNotFound: a file is missing.
        ModelFileInvalid: a file is no JSON.
    """
    for name in (_SETTINGS, _TOKENIZER):
        path = folder / name
        try:
            msgspec.json.decode(path.read_bytes())
        except FileNotFoundError as error:
            message = (
                f"{folder} has no {name}, which belongs to a Whisper model: copy it from where the model came from"
            )
            raise ModelFileNotFound(message) from error
        except (OSError, msgspec.DecodeError) as error:
            raise ModelFileInvalid(f"{path} cannot be read: {reason_of(error)}", path=str(path)) from error


def whisper_bytes(folder: Path) -> tuple[int, int]:
    """Size of the weights, and an estimate of what the process takes besides."""
    weights = folder.joinpath(_WEIGHTS).stat().st_size
    return weights, max(_LEAST_COMPUTE_BYTES, int((_COMPUTE - 1) * weights))
