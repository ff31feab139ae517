"""Images and recordings that a prompt refers to, and what they become in it. It reads no file and computes no row."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal, NamedTuple, TypeAlias

MediaKind: TypeAlias = Literal["image", "audio"]

_NUM_ROW_ENTRIES = 2**62


@dataclass(frozen=True, slots=True)
class Media:
    """A file that stands in a prompt wherever the prompt's text has its marker."""

    kind: MediaKind
    marker: str
    """Text made from the content and what else counts: what has equal markers is equal."""
    data: bytes
    """The file as it was sent."""
    longest: int = 0
    """Longer side that an image is reduced to, in pixels; 0 = it stays as it is."""


@dataclass(frozen=True, slots=True)
class Span:
    """Rows of an image, or of a part of it: consecutive entries of a prompt that are no tokens."""

    key: bytes
    """Names the pixels and what makes rows of them: equal keys have equal rows."""
    length: int
    kind: MediaKind = "image"
    grid: tuple[int, int] | None = None
    """Columns and rows, where a model rotates rows by their places in the image; None = by their order."""
    is_whole: bool = False
    """Each row attends to all others, also to those behind it."""

    def entries(self) -> tuple[int, ...]:
        """A negative number for each row, made from the key: the same row is the same entry, in every process."""
        return tuple(_row_entry(self.key, index) for index in range(self.length))

    @property
    def num_positions(self) -> int:
        """So far what stands behind it is rotated further."""
        return self.length if self.grid is None else max(self.grid)


class PlacedSpan(NamedTuple):
    """A span where it stands in a prompt."""

    start: int
    span: Span

    @property
    def end(self) -> int:
        return self.start + self.span.length


class RowPiece(NamedTuple):
    """Consecutive rows of a span in a chunk of entries."""

    offset: int
    """In the chunk, of the first of them."""
    first: int
    """In the span, of the same."""
    length: int
    span: Span
    position: int
    """Rotary position of the span's first row."""


Layout: TypeAlias = tuple[int | str | Span, ...]
"""What a file becomes: tokens, texts and rows in turn. A text is tokenized with the text of the prompt beside it."""


def _row_entry(key: bytes, index: int) -> int:
    digest = blake2b(key + index.to_bytes(4, "little"), digest_size=8).digest()
    return -1 - int.from_bytes(digest, "little") % _NUM_ROW_ENTRIES
