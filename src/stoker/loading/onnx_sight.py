"""Encoders of images in ONNX folders: whether one can be used, what it takes, and how its process opens it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.backends.onnx import Family, OnnxRowMaker, Signature, family_of
from stoker.backends.onnx.families import Image
from stoker.engine.config import EngineConfig
from stoker.errors import ModelError, ModelFileNotFound
from stoker.lazy import lazy_module
from stoker.models.onnx_folder import VISION, OnnxFolder, open_onnx_folder
from stoker.models.onnx_graph import OnnxGraph, read_onnx_graph
from stoker.models.onnx_links import follow_links
from stoker.models.onnx_vision import OnnxVision, read_onnx_vision
from stoker.models.projector import Projector, encoder_bytes
from stoker.text.tokenizer_json import JSONTokenizer

if TYPE_CHECKING:
    from stoker.media import resizing
else:
    resizing = lazy_module("stoker.media.resizing")  # for models that see


@dataclass(frozen=True, slots=True)
class Sight:
    """What an ONNX model does with images."""

    graph: OnnxGraph | None = None
    """The encoder; None = no images are taken."""
    image_text: str = ""
    """What the chat template writes in place of an image."""
    refusal: str = ""
    """Why no images are taken."""

    @property
    def projector(self) -> Projector | None:
        return None if self.graph is None else Projector(self.graph.path, ("image",))

    @property
    def num_bytes(self) -> int:
        """Memory of the encoder's process."""
        return 0 if self.graph is None else encoder_bytes(self.graph.weights_bytes)


def read_sight(config: EngineConfig, folder: OnnxFolder, signature: Signature, tokenizer: JSONTokenizer) -> Sight:
    """Whether a model is served with images. It writes text in any case."""
    if config.mmproj == "off":
        return Sight(refusal="--mmproj off is set")
    vision = read_onnx_vision(folder)
    if vision is None or not signature.row_width:
        return Sight(refusal=f"its folder has no {VISION}.onnx with a decoder that takes `inputs_embeds`")
    try:
        family = _family(vision, (0, 0))
        graph = read_onnx_graph(vision.path)
    except ModelError as error:
        return Sight(refusal=error.message)
    refusal = _misfit(family, signature, tokenizer)
    return Sight(refusal=refusal) if refusal else Sight(graph, family.text)


def open_row_maker(graph: Path, *, threads: int, token_limits: tuple[int, int]) -> OnnxRowMaker:
    """The encoder beside a decoder's graph, loaded.

    Raises:
        ModelUnsupported, ModelFileInvalid, ResourceExhausted: see `OnnxRowMaker`.
        ModelFileNotFound: there is none.
    """
    vision = read_onnx_vision(open_onnx_folder(graph))
    if vision is None:
        raise ModelFileNotFound(f"there is no {VISION}.onnx beside {graph}", path=str(graph))
    return OnnxRowMaker(follow_links(read_onnx_graph(vision.path)), _family(vision, token_limits), threads=threads)


def _family(vision: OnnxVision, limits: tuple[int, int]) -> Family:
    return family_of(vision.family, vision.pixels, limits, _resized)


def _resized(image: Image, size: tuple[int, int], filter: int) -> Image:
    return resizing.resized(image, size, filter)


def _misfit(family: Family, signature: Signature, tokenizer: JSONTokenizer) -> str:
    """What is missing for images of this family; empty = nothing."""
    if find_spec("PIL") is None:
        return "images need a package that is not installed: pip install 'stoker[images]'"
    if family.has_axes and not signature.has_axes:
        return "its decoder takes no positions of three axes"
    missing = [text for text in family.special if len(tokenizer.encode(text)) != 1]
    return f"its vocabulary has no token `{missing[0]}`, which stands beside images" if missing else ""
