"""Writes a batch to arrays that C++ reads: tokens, chunks, and rows of images, if any. It computes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from stoker import _native
from stoker.backends.held_rows import HeldRows
from stoker.backends.rotary import rotary_positions
from stoker.core.batch import Chunk
from stoker.core.media import RowPiece
from stoker.core.model_info import ModelInfo


class ImageInputs(TypedDict, total=False):
    """Additional arguments of `Decoder.forward` for batches with images."""

    inputs: NDArray[np.float32]
    sees_to: NDArray[np.int32]
    rotary: NDArray[np.int32]


_NOTHING = ImageInputs()


class BatchArrays:
    """The arrays of one model, which each batch overwrites.

    Args:
        info: sizes of the model.
        width: elements of a row that replaces an embedding.
        has_axes: whether rows of images are rotated by their places in the image.
    """

    def __init__(self, info: ModelInfo, width: int, *, has_axes: bool) -> None:
        self._tokens: NDArray[np.int32] = np.zeros(info.max_batch_tokens, dtype=np.int32)
        self._chunks: NDArray[np.int32] = np.zeros((info.num_slots, 4), dtype=np.int32)
        self._sizes = self._tokens.size, len(self._chunks)
        self._views = self._tokens, self._chunks
        """The parts of `_tokens` and `_chunks` that the last batch used."""
        self._has_axes = has_axes
        self.rows = HeldRows(width)
        """Rows of images that chunks may name."""

    def fill(self, chunks: tuple[Chunk, ...]) -> tuple[NDArray[np.int32], NDArray[np.int32], int, bool, ImageInputs]:
        """Returns token ids `(num_tokens,)`; for each chunk its slot, start, length and number of rows with logits; the
        total of these rows; whether any chunk names adapters; and additional arguments of `Decoder.forward`.
        """
        num_tokens, num_rows, is_adapted, num_inputs, is_shifted = _native.write_batch(
            chunks, self._tokens, self._chunks
        )
        if (num_tokens, len(chunks)) != self._sizes:
            self._sizes = (num_tokens, len(chunks))
            self._views = self._tokens[:num_tokens], self._chunks[: len(chunks)]
        more = _NOTHING
        if num_inputs or is_shifted:
            more = self._of_images(chunks, num_tokens, num_inputs)
        return *self._views, num_rows, is_adapted, more

    def _of_images(self, chunks: tuple[Chunk, ...], num_tokens: int, num_inputs: int) -> ImageInputs:
        found = ImageInputs()
        pieces = [piece for chunk in chunks for piece in chunk.rows]
        if num_inputs != sum(piece.length for piece in pieces):
            raise ValueError("a token id is negative, and stands for no row of an image")
        if num_inputs:
            found["inputs"] = np.concatenate([self.rows.of(piece) for piece in pieces], dtype=np.float32)
        if any(piece.span.is_whole for piece in pieces):
            found["sees_to"] = _seen(chunks, num_tokens)
        if self._has_axes:
            found["rotary"] = np.concatenate([rotary_positions(chunk) for chunk in chunks], dtype=np.int32)
        return found


def _placed(chunks: tuple[Chunk, ...]) -> Iterator[tuple[int, Chunk, RowPiece]]:
    """Every piece of rows, with the index of its first row in the batch, and its chunk."""
    before = 0
    for chunk in chunks:
        for piece in chunk.rows:
            yield before + piece.offset, chunk, piece
        before += len(chunk.entries)


def _seen(chunks: tuple[Chunk, ...], num_tokens: int) -> NDArray[np.int32]:
    """For each entry the end of the positions that it attends to, if it attends to later ones; else 0 (causal)."""
    seen = np.zeros(num_tokens, dtype=np.int32)
    for row, chunk, piece in _placed(chunks):
        if piece.span.is_whole:
            seen[row : row + piece.length] = chunk.start + piece.offset - piece.first + piece.span.length
    return seen
