"""Small PDF files, made on the spot: pages with one line of text each, and files that are hostile in one way."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pypdf
from pypdf.generic import DictionaryObject, NameObject, StreamObject

SIZE = (300.0, 200.0)


def pdf_file(
    lines: Sequence[str], *, size: tuple[float, float] = SIZE, password: str | None = None, drawing: bytes = b""
) -> bytes:
    """A document with a page for each line.

    Args:
        lines: of text, in large letters.
        size: of a page, in points.
        password: that opens it; None = it is not encrypted.
        drawing: operators that are drawn before each line.
    """
    writer = pypdf.PdfWriter()
    names = {"/Type": "/Font", "/Subtype": "/Type1", "/BaseFont": "/Helvetica"}
    font = DictionaryObject({NameObject(name): NameObject(value) for name, value in names.items()})
    fonts = DictionaryObject({NameObject("/F1"): font})
    for line in lines:
        page = writer.add_blank_page(*size)
        page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
        content = StreamObject()
        content.set_data(drawing + f"BT /F1 24 Tf 20 100 Td ({line}) Tj ET".encode())
        page[NameObject("/Contents")] = writer._add_object(content)
    if password is not None:
        writer.encrypt(user_password=password, owner_password="owner", algorithm="AES-256")
    written = io.BytesIO()
    writer.write(written)
    return written.getvalue()
