"""Splits chunks with rows of images into parts of only token ids or only rows. It computes nothing."""

from __future__ import annotations

from collections.abc import Iterator

from stoker.core.batch import Chunk
from stoker.core.media import RowPiece


def pieces(chunk: Chunk) -> Iterator[tuple[Chunk, RowPiece | None]]:
    """The parts of a chunk in their order, each with the rows that it consists of; None = it consists of token ids.

    ```
    entries    token token | row row row | token
    logits                         1  1      1      the last three of the chunk
    ```
    """
    done = 0
    for piece in chunk.rows:
        if piece.offset > done:
            yield _part(chunk, done, piece.offset), None
        done = piece.offset + piece.length
        yield _part(chunk, piece.offset, done), piece
        if piece.first + piece.length == piece.span.length:
            chunk = chunk._replace(shift=chunk.shift + piece.span.num_positions - piece.span.length)
    if done < len(chunk.entries):
        yield _part(chunk, done, len(chunk.entries)), None


def _part(chunk: Chunk, first: int, behind: int) -> Chunk:
    first_wanted = len(chunk.entries) - chunk.num_logits
    return chunk._replace(
        start=chunk.start + first,
        entries=chunk.entries[first:behind],
        num_logits=max(0, behind - max(first, first_wanted)),
        rows=(),
    )
