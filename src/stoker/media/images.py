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
"""Lowest compression: the PNG goes only to another process on this machine, so speed counts more than size."""
Image.MAX_IMAGE_PIXELS = None  # `_check_size` enforces the limit instead


def import_formats() -> None:
    """Imports the modules that Pillow imports lazily: the confined process cannot read modules from disk later."""
    Image.init()
    for module in _LATE_MODULES:
        import_module(module)


def as_png(data: bytes, *, longest: int = 0, max_pixels: int = MAX_PIXELS, max_side: int = MAX_SIDE) -> bytes:
    """The picture as an RGB PNG: the first frame, rotated as its EXIF data says, on white where it is transparent.

    Args:
        data: the file, in one of `FORMATS`.
        longest: maximum length of the longer side in pixels, to which the image is reduced; 0 = not reduced.
        max_pixels: maximum number of pixels; a larger image is refused before it is decoded.
        max_side: maximum length of a side in pixels; a larger image is refused before it is decoded.

    Raises:
        FileRefused: the file is too large, damaged, cut off, or in another format.
    """
    return _converted(data, _png, longest, max_pixels, max_side)


def as_pixels(data: bytes, *, longest: int = 0, max_pixels: int = MAX_PIXELS, max_side: int = MAX_SIDE) -> bytes:
    """The image as `SIZES` (width and height) and RGB pixels, row after row. For arguments and errors see `as_png`."""
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
    """A 16-bit gray image reduced to its upper 8 bits. Pillow's conversion would clip all but the darkest to white."""
    values = image.convert("I")
    gray = values.point([value >> 8 for value in range(_NUM_GRAYS)], "L")
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        opaque = values.point([255 * (value != transparent) for value in range(_NUM_GRAYS)], "L")
        gray = Image.merge("LA", (gray, opaque))
    else:
        gray.info.pop("transparency", None)
    return gray
