"""The interface to encoders of images and recordings, on any library. They get pixels and samples, never files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stoker.core.media import MediaKind


@dataclass(frozen=True, slots=True)
class Rows:
    """A part of a layout that consists of rows (input embeddings) instead of tokens."""

    length: int
    grid: tuple[int, int] | None = None
    """Columns and rows of the image, if the text model rotates rows by their places (M-RoPE)."""
    is_whole: bool = False
    """Whether the rows attend to each other bidirectionally, so that the text model must compute them at once."""


@dataclass(frozen=True, slots=True)
class Pixels:
    """A decoded image or recording, or only its size."""

    kind: MediaKind
    width: int
    """Width of an image in pixels, or length of a recording in samples."""
    height: int
    data: bytes | None = None
    """RGB pixels, row after row, or samples as 4-byte floats; None = only the size is known."""


class RowMaker(Protocol):
    """A loaded encoder of images or recordings. One thread encodes; other threads may call `layout` meanwhile."""

    width: int
    """Elements of a row; known after `try_out`."""
    kinds: tuple[MediaKind, ...]
    sample_rate: int
    """Sample rate of recordings, in Hz; 0 = the encoder takes no recordings."""

    def try_out(self) -> None:
        """Encodes a trial file of each kind, so that an encoder that crashes on every file does so before any request.

        Raises:
            ModelUnsupported: the encoder cannot be used.
        """
        ...

    def layout(self, pixels: Pixels) -> Sequence[int | str | Rows]:
        """The token ids, texts and rows that represent a file in a prompt. They depend only on the file's size.

        Raises:
            ModelFileInvalid: the model cannot process a file of this size.
        """
        ...

    def encode(self, pixels: Pixels, part: int, key: bytes) -> NDArray[np.float32]:
        """Computes the rows of one `Rows` of the layout, `(length, width)`.

        Args:
            pixels: the file, with data; data may be missing if the last call had the same key.
            part: index of the `Rows` among all `Rows` of the layout, from 0.
            key: names the file.

        Raises:
            ModelFileInvalid: the model cannot process the file.
            KeyError: the data are missing, and the last call had another key.
        """
        ...
