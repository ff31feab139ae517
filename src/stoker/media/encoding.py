"""The messages between a server and the process that encodes images and recordings. Each is one frame on a pipe."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from stoker.core.media import MediaKind
from stoker.media.frames import Describe, Refused


class Described(msgspec.Struct, frozen=True, tag=True):
    """Reply to `Describe`: the properties of the projector."""

    width: int
    """Number of values in a row."""
    kinds: list[MediaKind]
    sample_rate: int = 0
    """Sample rate of recordings, in Hz."""


class Lay(msgspec.Struct, frozen=True, tag=True):
    """Asks for the layout of an image of this size, or of a recording of `width` samples. Nothing is computed."""

    kind: MediaKind
    width: int
    height: int


class RowsPart(msgspec.Struct, frozen=True, tag=True):
    """A part of a layout that is `length` rows (embeddings); the other fields are those of `Span`."""

    length: int
    grid: tuple[int, int] | None = None
    is_whole: bool = False


class Laid(msgspec.Struct, frozen=True, tag=True):
    parts: list[int | str | RowsPart]
    """Token ids, texts with special tokens, and rows in turn."""


class Encode(msgspec.Struct, frozen=True, tag=True):
    """Asks for the rows of one part of a file."""

    kind: MediaKind
    width: int
    height: int
    part: int
    """Index of the part, among the parts of the layout that are rows."""
    key: bytes
    """Digest of the file. Preprocessing is shared by consecutive parts with the same key."""
    pixels: bytes
    """RGB pixels, row after row, or samples as 4-byte floats. Empty = those of the last order, which had this key."""


class Encoded(msgspec.Struct, frozen=True, tag=True):
    values: bytes
    """4-byte floats, little-endian, row after row."""


Order: TypeAlias = Describe | Lay | Encode
Reply: TypeAlias = Described | Laid | Encoded | Refused

order_decoder = msgspec.msgpack.Decoder(Order)
reply_decoder = msgspec.msgpack.Decoder(Reply)
