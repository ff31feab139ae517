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


def png_of_16_bits(*grays: int, transparent: int | None = None) -> bytes:
    """A PNG of one line of gray pixels, of which one value may stand for no color."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", len(grays), 1, 16, 0, 0, 0, 0))
    about = b"" if transparent is None else chunk(b"tRNS", struct.pack(">H", transparent))
    line = b"\0" + struct.pack(f">{len(grays)}H", *grays)
    return b"\x89PNG\r\n\x1a\n" + head + about + chunk(b"IDAT", zlib.compress(line)) + chunk(b"IEND", b"")


def test_grays_of_16_bits_keep_their_brightness():
    grays = 0, 255, 256, 40_000, 65_535
    found = pixels(as_png(png_of_16_bits(*grays)))
    assert [found.getpixel((x, 0)) for x in range(5)] == [(g >> 8,) * 3 for g in grays]
    found = pixels(as_png(png_of_16_bits(*grays, transparent=0)))
    assert [found.getpixel((x, 0)) for x in range(3)] == [(255,) * 3, (0,) * 3, (1,) * 3]


@pytest.mark.parametrize(
    ("image", "format", "save", "color"),
    [
        (Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG", {}, (255, 0, 0)),
        (Image.new("L", (8, 8), 100), "JPEG", {}, (100, 100, 100)),
        (Image.new("1", (8, 8), 1), "PNG", {}, (255, 255, 255)),
        (Image.new("LA", (8, 8), (100, 0)), "PNG", {}, (255, 255, 255)),
        (Image.new("P", (8, 8), 0), "PNG", {"transparency": 0}, (255, 255, 255)),
        (Image.new("P", (8, 8), 0), "GIF", {"transparency": 0}, (255, 255, 255)),
        (Image.new("P", (8, 8), 0), "GIF", {}, (0, 0, 0)),
        (Image.new("RGBA", (8, 8), (255, 0, 0, 0)), "WEBP", {"lossless": True}, (255, 255, 255)),
    ],
)
def test_every_kind_of_pixels_becomes_colors(
    image: Image.Image, format: str, save: dict[str, Any], color: tuple[int, int, int]
):
    file = io.BytesIO()
    image.save(file, format, **save)
    assert pixels(as_png(file.getvalue())).getpixel((3, 3)) == color


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG"])
def test_of_an_animation_the_first_picture_counts(format: str):
    others = [Image.new("RGB", (28, 28), color) for color in ("blue", "lime")]
    save: dict[str, Any] = {"save_all": True, "append_images": others, "duration": 40}
    save |= {"lossless": True} if format == "WEBP" else {}
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
        (png_head(20_000, 20_000), "has 20000 × 20000 pixels: a side may have 16384"),
        (b"GIF89a" + bytes(20), "^is damaged or cut off$"),
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
