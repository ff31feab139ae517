"""Images and recordings in a prompt, and their rows (embeddings that an encoder makes). It reads no file."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal, NamedTuple, TypeAlias

MediaKind: TypeAlias = Literal["image", "audio"]

_NUM_ROW_ENTRIES = 2**62


@dataclass(frozen=True, slots=True)
class Media:
    """A file that takes the place of its marker in the text of a prompt."""

    kind: MediaKind
    marker: str
    """Text that identifies the content and its settings: files with equal markers give equal rows."""
    data: bytes
    """The bytes of the file as the client sent it."""
    longest: int = 0
    """Maximum length of an image's longer side, in pixels: larger images are scaled down; 0 = no limit."""


@dataclass(frozen=True, slots=True)
class Span:
    """The rows of an image or recording, or of a part of it: consecutive prompt entries that are not tokens."""

    key: bytes
    """Hash of the content and of the encoder: equal keys have equal rows."""
    length: int
    kind: MediaKind = "image"
    grid: tuple[int, int] | None = None
    """Columns and rows of the image patches, for two-dimensional rotary positions (M-RoPE); None = one dimension."""
    is_whole: bool = False
    """Bidirectional attention: each row attends to all others, so that all are computed in one step."""

    def entries(self) -> tuple[int, ...]:
        """A negative number for each row, made from the key: the same row is the same entry, in every process."""
        return tuple(_row_entry(self.key, index) for index in range(self.length))

    @property
    def num_positions(self) -> int:
        """Number of rotary positions that the span takes."""
        return self.length if self.grid is None else max(self.grid)


class PlacedSpan(NamedTuple):
    """A span and the index of its first entry in a prompt."""

    start: int
    span: Span

    @property
    def end(self) -> int:
        return self.start + self.span.length


class RowPiece(NamedTuple):
    """Consecutive rows of a span in a chunk of entries."""

    offset: int
    """Index of the piece's first row in the chunk."""
    first: int
    """Index of the piece's first row in the span."""
    length: int
    span: Span
    position: int
    """Rotary position of the span's first row."""


Layout: TypeAlias = tuple[int | str | Span, ...]
"""What takes the place of a file: token ids, texts and spans. Texts are tokenized with the adjacent prompt text."""


def _row_entry(key: bytes, index: int) -> int:
    digest = blake2b(key + index.to_bytes(4, "little"), digest_size=8).digest()
    return -1 - int.from_bytes(digest, "little") % _NUM_ROW_ENTRIES
