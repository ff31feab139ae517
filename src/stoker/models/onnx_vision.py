"""What the files of an ONNX folder say about its encoder of images. Nothing is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from stoker.models.onnx_folder import VISION, OnnxFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxVision:
    """An encoder of images and the settings for it, as their authors wrote them."""

    path: Path
    """The graph."""
    family: str
    """`model_type` of the whole model."""
    pixels: Mapping[str, Any]
    """`preprocessor_config.json`, or what stands for it in `processor_config.json`."""


def read_onnx_vision(folder: OnnxFolder) -> OnnxVision | None:
    """What a folder has for images; None = the model does not see."""
    path = folder.beside(VISION)
    if path is None:
        return None
    kind = folder.read_json("config.json").get("model_type")
    inner = folder.read_json("processor_config.json").get("image_processor")
    own: Mapping[str, Any] = cast("Mapping[str, Any]", inner) if isinstance(inner, dict) else {}
    return OnnxVision(
        path=path,
        family=kind if isinstance(kind, str) else "",
        pixels=folder.read_json("preprocessor_config.json") or own,
    )
