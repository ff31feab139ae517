"""Names of unsupported file formats, recognized by the first bytes of a file. For error messages only."""

from __future__ import annotations

_STARTS = {
    b"%PDF-": "a PDF file",
    b"BM": "a BMP image",
    b"II*\0": "a TIFF image",
    b"MM\0*": "a TIFF image",
    b"\0\0\1\0": "an icon",
    b"\xff\x0a": "a JPEG XL image",
    b"\0\0\0\x0cJXL ": "a JPEG XL image",
    b"\0\0\0\x0cjP  ": "a JPEG 2000 image",
    b"8BPS": "a Photoshop image",
    b"#!AMR": "an AMR recording",
    b".snd": "an AU recording",
    b"caff": "a CAF recording",
    b"MThd": "a MIDI file",
    b"\x30\x26\xb2\x75": "a Windows Media file",
    b"PK\3\4": "a ZIP archive",
    b"\x1f\x8b": "a gzip archive",
}
_BRANDS = {b"avif": "an AVIF image", b"avis": "an AVIF image"}
_FORMS = {b"FORM": "an AIFF recording", b"RIFF": "a RIFF file, and neither WebP nor WAV"}
_MARKUP = {b"<svg": "an SVG image", b"<html": "an HTML page", b"<!doctype": "an HTML page", b"<?xml": "an XML file"}
_SEARCHED = 1024


def format_name(data: bytes) -> str:
    """The format of the file as a noun with its article, such as `a PDF file`; empty = unknown."""
    if not data:
        return "an empty file"
    if data[4:8] == b"ftyp":
        return _BRANDS.get(data[8:12], "a HEIC image")
    found = next((name for start, name in (_FORMS | _STARTS).items() if data.startswith(start)), "")
    head = data[:_SEARCHED].lower()
    return found or next((name for start, name in _MARKUP.items() if start in head), "")
