"""Rotary positions of the entries of a chunk, for models that rotate rows of images by their places in the image."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stoker.core.batch import Chunk

AXES = 3
"""Number of axes of a position: time, rows and columns."""


def rotary_positions(chunk: Chunk) -> NDArray[np.int32]:
    """The positions of each entry along the three axes, `(entries, 3)`.

    ```
    entries          token  token  row row row row  token      an image of 2 columns and 2 rows
    time               0      1     2   2   2   2     4
    rows               0      1     2   2   3   3     4
    columns            0      1     2   3   2   3     4
    ```
    """
    shifts = np.full(len(chunk.entries), chunk.shift, dtype=np.int64)
    for piece in chunk.rows:
        behind = piece.offset + piece.length
        shifts[behind:] = piece.position + piece.span.num_positions - (chunk.start + behind)
    positions = np.repeat((chunk.start + np.arange(len(chunk.entries)) + shifts)[:, None], AXES, axis=1)
    for piece in chunk.rows:
        index = np.arange(piece.first, piece.first + piece.length)
        if piece.span.grid is None:
            along = np.repeat(index[:, None], AXES, axis=1)
        else:
            columns = piece.span.grid[0]
            along = np.stack([np.zeros_like(index), index // columns, index % columns], axis=1)
        positions[piece.offset : piece.offset + piece.length] = piece.position + along
    return positions
