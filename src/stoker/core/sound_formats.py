"""Recognizes the file formats of recordings by their first bytes. It decodes nothing."""

from __future__ import annotations

_BY_START = {b"fLaC": "flac", b"OggS": "ogg", b"\x1a\x45\xdf\xa3": "matroska"}
_MPEG_4 = b"ftyp"
_HIGH_EFFICIENCY_IMAGES = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"mif1", b"msf1", b"avif", b"avis"})
_TAGS, _TAGS_HEAD = b"ID3", 10


def sound_format(data: bytes) -> str | None:
    """FFmpeg's name for the format of a file that may contain sound; None = the format is not supported."""
    if data[:4] == b"RIFF":
        return "wav" if data[8:12] == b"WAVE" else None
    if data[4:8] == _MPEG_4:
        return None if data[8:12] in _HIGH_EFFICIENCY_IMAGES else "mov"
    at = 0
    if data.startswith(_TAGS):
        for byte in data[_TAGS_HEAD - 4 : _TAGS_HEAD]:  # each has 7 bits of the length of the tags
            at = at << 7 | byte & 0x7F
        at += _TAGS_HEAD
    start = data[at : at + 4]
    sync = int.from_bytes(start[:2]) if start[:1] == b"\xff" else 0
    if sync & 0xFFF6 == 0xFFF0:
        return "aac"
    if sync & 0xFFE0 == 0xFFE0 and sync & 0x06 in (0x02, 0x04):  # layer III or II of any version
        return "mp3"
    return _BY_START.get(start, "mp3" if at else None)
