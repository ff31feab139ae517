"""Splits the chunks of a step into runs, for graphs that cannot compute all chunks in one. It computes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stoker.core.batch import Chunk
from stoker.core.media import RowPiece


def split_by_rows(chunk: Chunk, *, gives_all_rows: bool) -> list[Chunk]:
    """The parts of a chunk. Unless `gives_all_rows`, a run returns the logits of its last position only."""
    if gives_all_rows or chunk.num_logits <= 1:
        return [chunk]
    first = len(chunk.entries) - chunk.num_logits + 1
    return [_part(chunk, 0, first, 1), *(_part(chunk, at, at + 1, 1) for at in range(first, len(chunk.entries)))]


def split_by_tokens(chunk: Chunk) -> list[Chunk]:
    """The parts of a chunk, for a graph that takes one token at a time."""
    first = len(chunk.entries) - chunk.num_logits
    return [_part(chunk, at, at + 1, int(at >= first)) for at in range(len(chunk.entries))]


def split_by_padding(chunks: Sequence[Chunk], max_paddings: int | None) -> Iterator[Sequence[Chunk]]:
    """Groups chunks of one entry so that no group needs too much padding. Equal chunks always get the same groups.

    Args:
        chunks: chunks of different slots.
        max_paddings: most padded positions in one group; None = any number: all chunks are one group.
    """
    if max_paddings is None:
        yield from ([chunks] if chunks else [])
        return
    group: list[Chunk] = []
    for chunk in sorted(chunks, key=lambda chunk: -chunk.start):
        if group and sum(group[0].start - other.start for other in (*group, chunk)) > max_paddings:
            yield group
            group = []
        group.append(chunk)
    if group:
        yield group


def _part(chunk: Chunk, first: int, last: int, num_logits: int) -> Chunk:
    """The entries `first … last-1` of a chunk as a chunk, including its rows of images and rotary positions."""
    shift, rows = chunk.shift, list[RowPiece]()
    for piece in chunk.rows:
        end = piece.offset + piece.length
        if end <= first:
            shift = piece.position + piece.span.num_positions - (chunk.start + end)
        elif piece.offset < last:
            begin = max(piece.offset, first)
            taken = piece.first + begin - piece.offset
            rows.append(RowPiece(begin - first, taken, min(end, last) - begin, piece.span, piece.position))
    start, entries = chunk.start + first, chunk.entries[first:last]
    return Chunk(chunk.slot, start, entries, num_logits, chunk.adapters, tuple(rows), shift)
