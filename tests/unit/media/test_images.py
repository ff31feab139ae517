"""Images of unknown senders become plain pixels, or are refused."""

import io
import struct
import zlib
from typing import Any

import pytest
from PIL import Image

from stoker.media.confined import FileRefused
from stoker.media.images import as_png
from tests.projector_files import picture


def pixels(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data))
    assert (image.format, image.mode) == ("PNG", "RGB")
    return image


def png_head(width: int, height: int) -> bytes:
    """A PNG that claims this size and has no pixels."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + head
    pixels = struct.pack(">I", 100) + b"IDAT"
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk)) + pixels


@pytest.mark.parametrize(("format", "save"), [("PNG", {}), ("GIF", {}), ("WEBP", {"lossless": True})])
def test_a_picture_is_the_same_in_every_format(format: str, save: dict[str, Any]):
    assert as_png(picture("red", format=format, **save)) == as_png(picture("red"))


def test_transparent_pixels_are_white():
    assert pixels(as_png(picture((255, 0, 0, 0)))).getpixel((3, 3)) == (255, 255, 255)


def test_exif_turns_the_picture():
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter to the right
    assert pixels(as_png(picture("red", (40, 20), "JPEG", exif=exif))).size == (20, 40)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (png_head(12_000, 12_000), "may have 64000000"),
        (png_head(20_000, 1), "a side may have 16384"),
        (png_head(10, 10), "damaged or cut off"),
        (picture("red")[:50], "damaged or cut off"),
        (picture("red", (300, 300), "JPEG")[:400], "damaged or cut off"),
        (b"II*\0" + b"\0" * 40, "damaged or cut off"),
        (b"", "damaged or cut off"),
    ],
)
def test_what_is_no_whole_image_is_refused(data: bytes, words: str):
    with pytest.raises(FileRefused, match=words):
        as_png(data)
