"""Names of the formats of recordings, by their first bytes."""

from __future__ import annotations

_BY_START = {b"fLaC": "flac", b"OggS": "ogg", b"ID3": "mp3", b"\x1a\x45\xdf\xa3": "matroska"}
_MPEG_4 = b"ftyp"
_HIGH_EFFICIENCY_IMAGES = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"mif1", b"msf1", b"avif", b"avis"})


def sound_format(data: bytes) -> str | None:
    """The format of a file that may have sound in it, as FFmpeg calls it; None = it is none of those that are read."""
    if data[:4] == b"RIFF":
        return "wav" if data[8:12] == b"WAVE" else None
    if data[4:8] == _MPEG_4:
        return None if data[8:12] in _HIGH_EFFICIENCY_IMAGES else "mov"
    if len(data) > 1 and data[0] == 0xFF and data[1] & 0xE6 == 0xE2:  # layer III of any version
        return "mp3"
    return next((name for start, name in _BY_START.items() if data.startswith(start)), None)
