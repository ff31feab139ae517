"""Reads an untrusted PDF file: text and images of its pages. It runs in a separate process, see `documents`.

Text is read by pypdf, and images are drawn by PDFium, each only if it is asked for.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pypdf
import pypdfium2
from pypdf.errors import DependencyError, FileNotDecryptedError, LimitReachedError, PyPdfError

from stoker.media.pages import MAX_PAGES, MAX_PICTURE_BYTES, MAX_PICTURES, MAX_TEXT, Page

_ENCRYPTED = "is encrypted: send it without a password"
_TOO_LARGE_INSIDE = "unpacks to more than may be read"
_PNG_LEVEL = 1


class DocumentRefused(Exception):
    """The document cannot be used; the text says why."""


def read_pdf(data: bytes, side: int | None) -> list[Page]:
    """The pages of a document.

    Args:
        data: the file.
        side: longer side of the images of its pages, in pixels; None = only the text is wanted.

    Raises:
        DocumentRefused: it is encrypted, damaged, or too large.
    """
    try:
        texts = list(_texts(data, MAX_PAGES if side is None else MAX_PICTURES))
        images = [b""] * len(texts) if side is None else list(_images(data, side))
    except FileNotDecryptedError as error:
        raise DocumentRefused(_ENCRYPTED) from error
    except LimitReachedError as error:
        raise DocumentRefused(_TOO_LARGE_INSIDE) from error
    except (PyPdfError, pypdfium2.PdfiumError, RecursionError, ArithmeticError, LookupError, ValueError) as error:
        raise DocumentRefused(f"is damaged: {str(error)[:200] or type(error).__name__}") from error
    except (AttributeError, TypeError, AssertionError) as error:  # pypdf, of objects of unexpected kinds
        raise DocumentRefused("is damaged: an object in it is of the wrong kind") from error
    except MemoryError as error:
        raise DocumentRefused("takes too much memory to read") from error
    if len(images) != len(texts):
        raise DocumentRefused("is damaged: its number of pages is uncertain")
    return [Page(text, image) for text, image in zip(texts, images, strict=True)]


def _texts(data: bytes, max_pages: int) -> Iterator[str]:
    reader = pypdf.PdfReader(io.BytesIO(data))
    if reader.is_encrypted:
        _decrypt(reader)
    count = len(reader.pages)
    if not 1 <= count <= max_pages:
        raise DocumentRefused(f"has {count} pages: it may have 1 to {max_pages}" + _why(max_pages))
    num_chars = 0
    for page in reader.pages:
        text = page.extract_text().encode("utf-8", "replace").decode()
        num_chars += len(text)
        if num_chars > MAX_TEXT:
            raise DocumentRefused(f"has more than {MAX_TEXT} characters of text")
        yield text


def _why(max_pages: int) -> str:
    return ", because each becomes an image" if max_pages == MAX_PICTURES else ""


def _decrypt(reader: pypdf.PdfReader) -> None:
    """A file that only restricts what its readers may do has an empty password."""
    try:
        is_open = bool(reader.decrypt(""))
    except DependencyError as error:
        raise DocumentRefused(_ENCRYPTED) from error
    if not is_open:
        raise DocumentRefused(_ENCRYPTED)


def _images(data: bytes, side: int) -> Iterator[bytes]:
    num_bytes = 0
    with pypdfium2.PdfDocument(data) as document:
        for index in range(len(document)):
            image = _drawn(document, index, side)
            num_bytes += len(image)
            if num_bytes > MAX_PICTURE_BYTES:
                raise DocumentRefused(f"has pages whose images are larger than {MAX_PICTURE_BYTES} bytes together")
            yield image


def _drawn(document: Any, index: int, side: int) -> bytes:
    """A page as a PNG file. However large the page says that it is, the image has at most `side` pixels on a side."""
    page = document[index]
    longest = max(page.get_size())
    if not longest > 0:
        raise DocumentRefused(f"is damaged: page {index + 1} has no size")
    written = io.BytesIO()
    bitmap = page.render(scale=side / longest)
    bitmap.to_pil().convert("RGB").save(written, "PNG", compress_level=_PNG_LEVEL)
    bitmap.close()
    page.close()
    return written.getvalue()
