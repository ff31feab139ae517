"""The pages of a document, in the form that the process that reads it writes to a pipe, and their limits."""

from __future__ import annotations

import msgspec

MAX_PAGES = 1000
"""Maximum number of pages whose text is read."""
MAX_PICTURES = 64
"""Maximum number of pages that become images: the maximum number of files of a request."""
MAX_TEXT = 4 << 20
"""Maximum number of characters on all pages."""
MAX_PICTURE_BYTES = 64 << 20
"""Maximum size of the images of all pages."""
PAGE_SIDE, SMALL_PAGE_SIDE = 1568, 512
"""Longer side of a page's image in pixels, normally and for documents with `detail: low`."""


class Page(msgspec.Struct, frozen=True):
    text: str
    image: bytes = b""
    """A PNG file; empty if only the text was asked for."""


pages_decoder = msgspec.msgpack.Decoder(list[Page])
