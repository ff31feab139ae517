"""The messages between a server and the process that makes rows of images. Each is one frame on a pipe."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from stoker.core.media import MediaKind
from stoker.media.frames import Describe, Refused


class Described(msgspec.Struct, frozen=True, tag=True):
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
    """Rows of a layout."""

    length: int
    grid: tuple[int, int] | None = None
    is_whole: bool = False


class Laid(msgspec.Struct, frozen=True, tag=True):
    parts: list[int | str | RowsPart]
    """Token ids, texts with special tokens, and rows in turn."""


class Encode(msgspec.Struct, frozen=True, tag=True):
    """The rows of one part of a file."""

    kind: MediaKind
    width: int
    height: int
    part: int
    """Number of the part, among the parts that are rows."""
    key: bytes
    """Name of the file: what was prepared for one of its parts serves its other parts."""
    pixels: bytes
    """RGB, row after row; or samples as floats of 4 bytes. Empty = those of the last call, which had the same key."""


class Encoded(msgspec.Struct, frozen=True, tag=True):
    values: bytes
    """Values of 4 bytes, little-endian, row after row."""


Order: TypeAlias = Describe | Lay | Encode
Reply: TypeAlias = Described | Laid | Encoded | Refused

order_decoder = msgspec.msgpack.Decoder(Order)
reply_decoder = msgspec.msgpack.Decoder(Reply)
