"""Encodes images with the vision encoder of an ONNX folder, in a process of its own. It gets pixels, never files."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from stoker.backends.onnx.families import Family, Image
from stoker.backends.onnx.file import GraphFile
from stoker.backends.onnx.runtime import CPU, SessionOptions, load_errors, open_session
from stoker.backends.row_maker import Pixels, Rows
from stoker.core.media import MediaKind
from stoker.errors import ModelFileInvalid, ModelUnsupported

_INPUTS = {"pixel_values", "pixel_attention_mask", "image_grid_thw"}
_OUTPUT = "image_features"
_TRIAL_SIDE = 64


class OnnxRowMaker:
    """A loaded `vision_encoder` graph on the CPU. Satisfies `RowMaker`.

    Args:
        graph: the file.
        family: the image processor of the model's family.
        threads: number of threads that compute.

    Raises:
        ModelUnsupported: an input of the graph is unknown, or ONNX Runtime cannot run the graph.
        ModelFileInvalid, ResourceExhausted: the graph cannot be loaded.
    """

    def __init__(self, graph: GraphFile, family: Family, *, threads: int) -> None:
        self.kinds: tuple[MediaKind, ...] = ("image",)
        self.sample_rate = 0
        self.width = 0
        self._name = graph.path.name
        self._family = family
        self._inputs = {value.name: value for value in graph.inputs}
        if unknown := sorted(self._inputs.keys() - _INPUTS):
            self._refuse(f"its input `{unknown[0]}` has no known meaning (known: {', '.join(sorted(_INPUTS))})")
        names = [value.name for value in graph.outputs]
        self._output = _OUTPUT if _OUTPUT in names else names[0]
        self._session = open_session(graph, SessionOptions(threads=threads, provider=CPU))
        self._num_rows = 0
        """Rows that the encoder returns for a part, if all parts have the same number; 0 before `try_out`."""
        self._prepared: tuple[bytes, list[Image]] | None = None
        """The key and the parts of the last image."""

    def try_out(self) -> None:
        """See `RowMaker.try_out`."""
        trial = Pixels("image", _TRIAL_SIDE, _TRIAL_SIDE, bytes(3 * _TRIAL_SIDE**2))
        try:
            first = self._family.parts(_image(trial), 0)[0]
            rows = self._run(first)
            self.width, self._num_rows = rows.shape[1], len(rows)
            found = next(part for part in self.layout(trial) if isinstance(part, Rows)).length
        except ModelFileInvalid as error:
            self._refuse(error.message)
        if found != len(rows):
            self._refuse(f"it gives {len(rows)} rows for an image of which {found} are expected")
        if not np.isfinite(rows).all():
            self._refuse("it gives no numbers")

    def layout(self, pixels: Pixels) -> list[str | Rows]:
        """See `RowMaker.layout`."""
        return self._family.layout((pixels.width, pixels.height), self._num_rows)

    def encode(self, pixels: Pixels, part: int, key: bytes) -> NDArray[np.float32]:
        """See `RowMaker.encode`."""
        expected = [found for found in self.layout(pixels) if isinstance(found, Rows)]
        parts = self._parts(pixels, key)
        if not 0 <= part < len(expected):
            raise ModelFileInvalid(f"there is no part {part} of {len(expected)}")
        rows = self._run(parts[part])
        if rows.shape != (expected[part].length, self.width):
            raise ModelFileInvalid(f"it gives {rows.shape} numbers, not {(expected[part].length, self.width)}")
        return rows

    def _parts(self, pixels: Pixels, key: bytes) -> list[Image]:
        if self._prepared is None or not key or self._prepared[0] != key:
            if pixels.data is None:
                raise KeyError(key)
            self._prepared = key, self._family.parts(_image(pixels), self._num_rows)
        return self._prepared[1]

    def _run(self, part: Image) -> NDArray[np.float32]:
        given = self._family.inputs(part)
        feeds: dict[str, NDArray[Any]] = {}
        for name, value in self._inputs.items():
            if name not in given:
                self._refuse(f"its input `{name}` is not one of this family")
            array = given[name].astype(value.type)
            feeds[name] = array.reshape((1,) * (len(value.shape) - array.ndim) + array.shape)
        try:
            found: NDArray[Any] = self._session.inner.run([self._output], feeds)[0]
        except load_errors() as error:
            raise ModelFileInvalid(f"it cannot be encoded: {' '.join(str(error).split())}") from error
        return found.reshape(-1, found.shape[-1]).astype(np.float32)

    def _refuse(self, what: str) -> NoReturn:
        raise ModelUnsupported(f"{self._name} cannot be used for images: {what}")


def _image(pixels: Pixels) -> Image:
    assert pixels.data is not None, "pixels to encode"
    return np.frombuffer(pixels.data, dtype=np.uint8).reshape(pixels.height, pixels.width, 3)
