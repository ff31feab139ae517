"""Reads images and recordings in the content of messages, for all API dialects. Decodes base64, but no file formats."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast
from urllib.parse import unquote

from stoker.core.media import Media, MediaKind
from stoker.core.sound_formats import sound_format
from stoker.errors import InvalidInput, UnsupportedParameter
from stoker.text.file_formats import format_name
from stoker.text.template_budget import take_time

MAX_MEDIA_BYTES = 20 << 20
"""Maximum size of one file."""
MAX_MEDIA = 64
"""Maximum number of files in one request."""
MAX_REQUEST_BYTES = 64 << 20
"""Maximum size of all files of one request."""

MEDIA_TYPES = frozenset({"image_url", "input_image", "image", "input_audio", "audio_url"})
"""Types of parts that `media_part` reads."""

_FORMATS: Mapping[MediaKind, str] = {"image": "PNG, JPEG, WebP or GIF", "audio": "WAV, MP3, FLAC, OGG, M4A or WebM"}
_KINDS: Mapping[MediaKind, str] = {"image": "an image", "audio": "a recording"}
_DATA_URL = re.compile(r"data:[^,]*; *base64 *,", re.IGNORECASE)
_TO_STANDARD = bytes.maketrans(b"-_", b"+/")
_BLANKS = b" \t\r\n\f"
_DIGEST_CHARS = 32
_SIDES = {"auto": 0, "low": 512, "high": 0, "original": 0}
"""Maximum longer side of an image in pixels, by the requested `detail`; 0 = not resized."""
_OVERSIZED = ("downsize", "error")


@dataclass(frozen=True, slots=True)
class MediaPart:
    """One image or recording of a message's content."""

    media: Media

    @property
    def text(self) -> str:
        """The marker that a chat template writes in place of the file."""
        return self.media.marker


def media_part(kind: str, fields: Mapping[object, object], where: str) -> MediaPart:
    """The image or recording in a content part whose type is one of `MEDIA_TYPES`.

    Args:
        kind: the type of the part.
        fields: the part.
        where: path of the part in the request, for errors.

    Raises:
        InvalidInput: the data is missing, not base64, too large, or in an unsupported format.
        UnsupportedParameter: the part refers to a file by URL or file id.
    """
    if kind == "input_audio":
        given = fields.get("input_audio")
        data = cast("Mapping[object, object]", given).get("data") if isinstance(given, Mapping) else None
        return MediaPart(media_from_base64(data, "audio", f"{where}.input_audio.data"))
    if kind == "audio_url":
        url = fields.get("audio_url")
        if isinstance(url, Mapping):
            given = cast("Mapping[object, object]", url)
            return MediaPart(media_from_base64(given.get("url"), "audio", f"{where}.audio_url.url"))
        return MediaPart(media_from_base64(url, "audio", f"{where}.audio_url"))
    return MediaPart(_image(kind, fields, where))


def media_from_base64(text: object, kind: MediaKind | None, where: str) -> Media:
    """The file in base64 text or a `data:` URL. If `kind` is None, both images and recordings are accepted.

    Raises:
        InvalidInput: the text is not base64, or the file is too large or in an unsupported format.
        UnsupportedParameter: the text is a URL that would have to be fetched.
    """
    return media_from_bytes(decoded_file(text, where), kind, where)


def media_from_bytes(
    data: bytes, kind: MediaKind | None, where: str, *, max_bytes: int = MAX_MEDIA_BYTES, longest: int = 0
) -> Media:
    """An image or recording from its bytes. The first bytes decide its format, never a file name or a declared type.

    For `longest` see `Media`.

    Raises:
        InvalidInput: the file is too large, of another kind than `kind`, or in an unsupported format.
    """
    if len(data) > max_bytes:
        raise _invalid(where, f"has {len(data)} bytes: a file may have {max_bytes}")
    found = _kind_of(data)
    if found is None or kind not in (None, found):
        name = format_name(data) if found is None else _KINDS[found]
        formats = [words for known, words in _FORMATS.items() if kind in (None, known)]
        is_what = f"is {name}, which is not supported here" if name else "is in a format that is not supported"
        raise _invalid(where, f"{is_what}: send {' or '.join(formats)}")
    digest = hashlib.sha256(b"%d\0%b" % (longest, data) if longest else data).hexdigest()
    return Media(found, f"<__media_{digest[:_DIGEST_CHARS]}__>", data, longest)


def media_of_parts(parts: Sequence[object], where: str = "messages") -> tuple[Media, ...]:
    """The files in some parts of messages, without duplicates.

    Raises:
        InvalidInput: there are more files than one request may have, or their total size is too large.
    """
    files = [part.media for part in parts if isinstance(part, MediaPart)]
    if len(files) > MAX_MEDIA:
        raise _invalid(where, f"has {len(files)} images and recordings: a request may have {MAX_MEDIA}")
    different = tuple({file.marker: file for file in files}.values())
    num_bytes = sum(len(file.data) for file in different)
    if num_bytes > MAX_REQUEST_BYTES:
        raise _invalid(where, f"has {num_bytes} bytes of images and recordings: a request may have {MAX_REQUEST_BYTES}")
    return different


def _image(kind: str, fields: Mapping[object, object], where: str) -> Media:
    source = fields.get("source")
    if kind == "image" and isinstance(source, Mapping):
        _check_transformations(fields.get("transformations"), f"{where}.transformations")
        return _anthropic_image(cast("Mapping[object, object]", source), f"{where}.source")
    if fields.get("file_id") is not None:
        raise UnsupportedParameter(f"`{where}.file_id`: there is no store of files; send the data", parameter=where)
    url = fields.get("image_url")
    if isinstance(url, Mapping):
        given = cast("Mapping[object, object]", url)
        return _from_url(given.get("url"), f"{where}.image_url.url", _longest(given, f"{where}.image_url"))
    return _from_url(url, f"{where}.image_url", _longest(fields, where))


def _longest(fields: Mapping[object, object], where: str) -> int:
    detail = fields.get("detail")
    if detail is None:
        return 0
    if not isinstance(detail, str) or detail not in _SIDES:
        raise _invalid(f"{where}.detail", f"must be one of {', '.join(_SIDES)}")
    return _SIDES[detail]


def _check_transformations(wishes: object, where: str) -> None:
    """Checks `oversized_image`. It has no effect: too large images are refused, and none is downsized because of it."""
    if wishes is None:
        return
    wish = cast("Mapping[object, object]", wishes).get("oversized_image") if isinstance(wishes, Mapping) else wishes
    if wish not in (None, *_OVERSIZED):
        raise _invalid(f"{where}.oversized_image", f"must be one of {', '.join(_OVERSIZED)}")


def _anthropic_image(source: Mapping[object, object], where: str) -> Media:
    match source.get("type"):
        case "base64":
            return media_from_base64(source.get("data"), "image", f"{where}.data")
        case "url":
            return _from_url(source.get("url"), f"{where}.url")
        case _:
            raise UnsupportedParameter(f"`{where}`: send the image as base64", parameter=where)


def _from_url(url: object, where: str, longest: int = 0) -> Media:
    return media_from_bytes(decoded_file(url, where), "image", where, longest=longest)


def decoded_file(text: object, where: str) -> bytes:
    """The bytes in base64 text or a `data:` URL.

    Raises:
        InvalidInput: the text is not base64, or the file is too large.
        UnsupportedParameter: the text is a URL that would have to be fetched.
    """
    if not isinstance(text, str) or not text:
        raise _invalid(where, "must be the file as base64 text")
    text = text.strip()
    payload = text
    if text[:5].lower() == "data:":
        found = _DATA_URL.match(text)
        if found is None:
            raise _invalid(where, "must be a `data:` URL with base64 in it, as in `data:image/png;base64,…`")
        payload = unquote(text[found.end() :])
    elif re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*://", text):
        raise UnsupportedParameter(
            f"`{where}`: its URL is not fetched here; send the file as a `data:` URL", parameter=where
        )
    return _decoded(payload, where)


def _decoded(payload: str, where: str) -> bytes:
    """Decodes base64 as clients write it: with or without line breaks, with or without padding, also URL-safe."""
    take_time()
    try:
        digits = payload.encode("ascii").translate(_TO_STANDARD, _BLANKS).rstrip(b"=")
        # Base64 has 4 characters for 3 bytes, so the size is known before decoding.
        if len(digits) > (MAX_MEDIA_BYTES + 2) // 3 * 4:
            raise _invalid(where, f"is larger than {MAX_MEDIA_BYTES} bytes")
        return base64.b64decode(digits + b"=" * (-len(digits) % 4), validate=True)
    except UnicodeEncodeError as error:
        raise _invalid(where, "is not valid base64: it has characters beyond ASCII") from error
    except binascii.Error as error:
        raise _invalid(where, f"is not valid base64: {error}") from error


def _kind_of(data: bytes) -> MediaKind | None:
    if data.startswith((b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a")):
        return "image"
    if data[:4] == b"RIFF":
        kinds: dict[bytes, MediaKind] = {b"WEBP": "image", b"WAVE": "audio"}
        return kinds.get(data[8:12])
    return None if sound_format(data) is None else "audio"


def _invalid(where: str, problem: str) -> InvalidInput:
    return InvalidInput(f"`{where}` {problem}", parameter=where)
