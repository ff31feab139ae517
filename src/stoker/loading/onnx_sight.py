"""Image encoders in ONNX folders: whether a model can use one, its memory needs, and how its process opens it."""

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
    resizing = lazy_module("stoker.media.resizing")  # only needed for models with images


@dataclass(frozen=True, slots=True)
class Sight:
    """Whether and how an ONNX model takes images."""

    graph: OnnxGraph | None = None
    """The graph of the image encoder; None = the model takes no images."""
    image_text: str = ""
    """Text that the chat template writes for an image."""
    refusal: str = ""
    """Why the model takes no images; empty if it does."""

    @property
    def projector(self) -> Projector | None:
        return None if self.graph is None else Projector(self.graph.path, ("image",))

    @property
    def num_bytes(self) -> int:
        """Memory of the encoder process, in bytes."""
        return 0 if self.graph is None else encoder_bytes(self.graph.weights_bytes)


def read_sight(config: EngineConfig, folder: OnnxFolder, signature: Signature, tokenizer: JSONTokenizer) -> Sight:
    """Determines whether a model is served with images. If not, it is served for text only."""
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
    """Loads the image encoder beside a decoder's graph.

    Args:
        graph: the decoder.
        threads: number of threads that compute.
        token_limits: minimum and maximum tokens per image; 0 = the model's own limits.

    Raises:
        ModelUnsupported, ModelFileInvalid, ResourceExhausted: see `OnnxRowMaker`.
        ModelFileNotFound: there is no encoder.
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
    """Why images of this family cannot be used; empty = they can."""
    if find_spec("PIL") is None:
        return "images need a package that is not installed: pip install 'stoker[images]'"
    if family.has_axes and not signature.has_axes:
        return "its decoder takes no positions of three axes"
    missing = [text for text in family.special if len(tokenizer.encode(text)) != 1]
    return f"its vocabulary has no token `{missing[0]}`, which stands beside images" if missing else ""
