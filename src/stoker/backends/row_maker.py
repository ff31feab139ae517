"""What makes rows of images and recordings, on any library: it is given pixels and samples, never a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stoker.core.media import MediaKind


@dataclass(frozen=True, slots=True)
class Rows:
    """A part of a layout that is rows."""

    length: int
    grid: tuple[int, int] | None = None
    """Columns and rows, where the text model rotates rows by their places."""
    is_whole: bool = False
    """The text model is to see them all at once."""


@dataclass(frozen=True, slots=True)
class Pixels:
    """An image, or a recording, of which only the size may be known."""

    kind: MediaKind
    width: int
    """In pixels, or in samples."""
    height: int
    data: bytes | None = None
    """RGB, row after row; or samples as floats of 4 bytes."""


class RowMaker(Protocol):
    """A loaded encoder of images or recordings. One thread encodes; layouts are asked for meanwhile."""

    width: int
    """Numbers of a row; known after `try_out`."""
    kinds: tuple[MediaKind, ...]
    sample_rate: int
    """Of recordings, in Hz; 0 = it takes none."""

    def try_out(self) -> None:
        """Encodes a file of each kind. A defect that ends the process for every file ends it here, before any request.

        Raises:
            ModelUnsupported: it cannot be used.
        """
        ...

    def layout(self, pixels: Pixels) -> Sequence[int | str | Rows]:
        """Token ids, texts and rows that stand in a prompt for a file. Only its size counts.

        Raises:
            ModelFileInvalid: such a file cannot be taken.
        """
        ...

    def encode(self, pixels: Pixels, part: int, key: bytes) -> NDArray[np.float32]:
        """The rows of one of the parts that are rows, `(length, width)`.

        Args:
            pixels: with data, or without if the last call had the same key.
            part: counted from 0.
            key: names the file.

        Raises:
            ModelFileInvalid: the file cannot be taken.
            KeyError: there are no data.
        """
        ...
