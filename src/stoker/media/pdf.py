"""Reads an untrusted PDF file: text and images of its pages. It runs in a separate process, see `documents`.

Text is read by pypdf, and images are drawn by PDFium, each only if it is asked for.
"""

from __future__ import annotations

import contextlib
import encodings
import importlib
import io
import pkgutil
from collections.abc import Iterator
from typing import Any

import msgspec
import pypdf
import pypdfium2
from pypdf.errors import DependencyError, FileNotDecryptedError, LimitReachedError, PyPdfError

from stoker.media import images
from stoker.media.confined import FileRefused
from stoker.media.pages import MAX_PAGES, MAX_PICTURE_BYTES, MAX_PICTURES, MAX_TEXT, Page

_ENCRYPTED = "is encrypted: send it without a password"
_TOO_LARGE_INSIDE = "unpacks to more than may be read"
_PNG_LEVEL = 1
_OPTIONAL = ("json", "datetime", "brotli", "fontTools.cffLib", "fontTools.ttLib", "arabic_reshaper", "bidi.algorithm")
"""Modules that pypdf imports lazily, if they are installed."""


def import_formats() -> None:
    """Imports all modules that are otherwise imported lazily: the confined process cannot open files later."""
    images.import_formats()
    for name in _OPTIONAL:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for package in (encodings, pypdf):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            with contextlib.suppress(ImportError):  # for another operating system, or needs a missing library
                importlib.import_module(module.name)


def as_pages(data: bytes, *, side: int) -> bytes:
    """The pages of a document as MessagePack for `pages_decoder`; for arguments and errors see `read_pdf`."""
    return msgspec.msgpack.encode(read_pdf(data, side))


def read_pdf(data: bytes, side: int) -> list[Page]:
    """The pages of a document.

    Args:
        data: the file.
        side: longer side of the images of its pages, in pixels; 0 = only the text is wanted.

    Raises:
        FileRefused: the file is encrypted, damaged, or too large.
    """
    try:
        texts = list(_texts(data, MAX_PICTURES if side else MAX_PAGES))
        pictures = list(_images(data, side)) if side else [b""] * len(texts)
    except FileNotDecryptedError as error:
        raise FileRefused(_ENCRYPTED) from error
    except LimitReachedError as error:
        raise FileRefused(_TOO_LARGE_INSIDE) from error
    except (PyPdfError, pypdfium2.PdfiumError, RecursionError, ArithmeticError, LookupError, ValueError) as error:
        raise FileRefused(f"is damaged: {str(error)[:200] or type(error).__name__}") from error
    except (AttributeError, TypeError, AssertionError) as error:  # pypdf meets objects of unexpected types
        raise FileRefused("is damaged: an object in it is of the wrong kind") from error
    except MemoryError as error:
        raise FileRefused("takes too much memory to read") from error
    if len(pictures) != len(texts):
        raise FileRefused("is damaged: its number of pages is uncertain")
    return [Page(text, image) for text, image in zip(texts, pictures, strict=True)]


def _texts(data: bytes, max_pages: int) -> Iterator[str]:
    reader = pypdf.PdfReader(io.BytesIO(data))
    if reader.is_encrypted:
        _decrypt(reader)
    count = len(reader.pages)
    if not 1 <= count <= max_pages:
        why = ", because each becomes an image" if max_pages == MAX_PICTURES else ""
        raise FileRefused(f"has {count} pages: it may have 1 to {max_pages}{why}")
    num_chars = 0
    for page in reader.pages:
        text = page.extract_text().encode("utf-8", "replace").decode()
        num_chars += len(text)
        if num_chars > MAX_TEXT:
            raise FileRefused(f"has more than {MAX_TEXT} characters of text")
        yield text


def _decrypt(reader: pypdf.PdfReader) -> None:
    """Decrypts with an empty password, which a file has that only restricts printing or copying."""
    try:
        is_open = bool(reader.decrypt(""))
    except DependencyError as error:
        raise FileRefused(_ENCRYPTED) from error
    if not is_open:
        raise FileRefused(_ENCRYPTED)


def _images(data: bytes, side: int) -> Iterator[bytes]:
    num_bytes = 0
    with pypdfium2.PdfDocument(data) as document:
        for index in range(len(document)):
            image = _drawn(document, index, side)
            num_bytes += len(image)
            if num_bytes > MAX_PICTURE_BYTES:
                raise FileRefused(f"has pages whose images are larger than {MAX_PICTURE_BYTES} bytes together")
            yield image


def _drawn(document: Any, index: int, side: int) -> bytes:
    """A page as a PNG file. Whatever size the page declares, the image has at most `side` pixels on a side."""
    page = document[index]
    longest = max(page.get_size())
    if not longest > 0:
        raise FileRefused(f"is damaged: page {index + 1} has no size")
    written = io.BytesIO()
    bitmap = page.render(scale=side / longest)
    bitmap.to_pil().convert("RGB").save(written, "PNG", compress_level=_PNG_LEVEL)
    bitmap.close()
    page.close()
    return written.getvalue()
