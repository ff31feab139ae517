"""Decodes an untrusted image file to plain pixels, within bounds. It runs in a separate process, see `decoder`."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from importlib import import_module

from PIL import Image, ImageOps, UnidentifiedImageError

from stoker.media.confined import FileRefused
from stoker.media.plain import MAX_PIXELS, SIZES

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
MAX_SIDE = 16_384
_LATE_MODULES = ("copy", "mmap", "tempfile", "PIL.ImageColor", "PIL.ImageFilter", "PIL.ImagePalette", "PIL.ImageCms")
_NUM_GRAYS = 1 << 16
_PNG_LEVEL = 1
Image.MAX_IMAGE_PIXELS = None  # `_check_size` says how many are allowed
"""The file goes to a neighbor process only, so speed counts more than size."""


def import_formats() -> None:
    """Imports what Pillow imports when it first needs it: later no module can be read from disk."""
    Image.init()
    for module in _LATE_MODULES:
        import_module(module)


def as_png(data: bytes, *, longest: int = 0, max_pixels: int = MAX_PIXELS, max_side: int = MAX_SIDE) -> bytes:
    """The picture as an RGB PNG: the first frame, rotated as its EXIF data says, on white where it is transparent.

    Args:
        data: the file, in one of `FORMATS`.
        longest: its longer side is reduced to this number of pixels; 0 = it stays as it is.
        max_pixels: more are refused before anything is decoded.
        max_side: in pixels, likewise.

    Raises:
        FileRefused: it is too large, damaged, cut off, or in another format.
    """
    return _converted(data, _png, longest, max_pixels, max_side)


def as_pixels(data: bytes, *, longest: int = 0, max_pixels: int = MAX_PIXELS, max_side: int = MAX_SIDE) -> bytes:
    """The same picture as `SIZES` and its pixels: RGB, row after row. For arguments and errors see `as_png`."""
    return _converted(data, _pixels, longest, max_pixels, max_side)


def _png(picture: Image.Image) -> bytes:
    written = io.BytesIO()
    picture.save(written, "PNG", compress_level=_PNG_LEVEL)
    return written.getvalue()


def _pixels(picture: Image.Image) -> bytes:
    return SIZES.pack(*picture.size) + picture.tobytes()


def _converted(
    data: bytes, convert: Callable[[Image.Image], bytes], longest: int, max_pixels: int, max_side: int
) -> bytes:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                _check_size(image.size, max_pixels, max_side)
                image.load()
                return convert(_reduced(_on_white(ImageOps.exif_transpose(image)), longest))
    except UnidentifiedImageError as error:
        raise FileRefused("is damaged or cut off") from error
    except (OSError, ValueError, SyntaxError, EOFError, OverflowError, Image.DecompressionBombError) as error:
        raise FileRefused(f"is damaged or cut off: {error}") from error
    except MemoryError as error:
        raise FileRefused("takes too much memory to decode") from error


def _check_size(size: tuple[int, int], max_pixels: int, max_side: int) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise FileRefused("has no pixels")
    if max(size) > max_side:
        raise FileRefused(f"has {width} × {height} pixels: a side may have {max_side}")
    if width * height > max_pixels:
        raise FileRefused(f"has {width} × {height} pixels: an image may have {max_pixels}")


def _reduced(image: Image.Image, longest: int) -> Image.Image:
    if longest:
        image.thumbnail((longest, longest), Image.Resampling.LANCZOS)
    return image


def _on_white(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        image = _of_8_bits(image)
    if not image.has_transparency_data:
        return image.convert("RGB")
    with_alpha = image.convert("RGBA")
    white = Image.new("RGB", with_alpha.size, "white")
    white.paste(with_alpha, mask=with_alpha.getchannel("A"))
    return white


def _of_8_bits(image: Image.Image) -> Image.Image:
    """A gray image of 16 bits with the upper 8 of them; Pillow would make all but the darkest values white."""
    values = image.convert("I")
    gray = values.point([value >> 8 for value in range(_NUM_GRAYS)], "L")
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        opaque = values.point([255 * (value != transparent) for value in range(_NUM_GRAYS)], "L")
        gray = Image.merge("LA", (gray, opaque))
    else:
        gray.info.pop("transparency", None)
    return gray
