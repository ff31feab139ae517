"""The small files beside a model's weights: JSON, as Hugging Face's libraries write it, and texts."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec

from stoker.errors import ModelFileInvalid, reason_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class JSONFolder:
    """The files of one model."""

    folders: tuple[Path, ...]
    """Where files are looked for, in this order."""

    @property
    def name(self) -> str:
        """What the folder of the model is called."""
        return self.folders[0].resolve().name

    def find(self, name: str) -> Path | None:
        """The first file of this name."""
        return next((folder / name for folder in self.folders if (folder / name).is_file()), None)

    def read_json(self, name: str) -> Mapping[str, Any]:
        """What is in a file; nothing if it is missing, or cannot be read (a warning says so)."""
        path = self.find(name)
        if path is None:
            return {}
        try:
            found: object = msgspec.json.decode(path.read_bytes())
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            logger.warning("%s is ignored: %s", path, error)
            return {}
        if not isinstance(found, dict):
            logger.warning("%s is ignored: it holds no object", path)
            return {}
        return cast(Mapping[str, Any], found)

    def read_text(self, name: str) -> str | None:
        """The text of a file; None if it is missing.

        Raises:
            ModelFileInvalid: it cannot be read.
        """
        path = self.find(name)
        try:
            return None if path is None else path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelFileInvalid(f"{path} cannot be used: {reason_of(error)}", path=str(path)) from error
