"""Images and recordings of messages, in the shapes of all dialects."""

import base64
from typing import Any
from urllib.parse import quote

import pytest

from stoker.core.media import MediaKind
from stoker.errors import InvalidInput, UnsupportedParameter
from stoker.text.media_parts import (
    MAX_MEDIA,
    MAX_MEDIA_BYTES,
    MediaPart,
    media_from_base64,
    media_from_bytes,
    media_of_parts,
)
from stoker.text.messages import Message, TextPart, message_from_dict
from tests.projector_files import base64_of, data_url, picture

RED = picture("red")
WAV = b"RIFF\0\0\0\0WAVEfmt "


def part(raw: dict[str, Any]) -> Any:
    message = message_from_dict({"role": "user", "content": [raw]}, "messages[0]")
    assert isinstance(message.content, tuple)
    return message.content[0]


@pytest.mark.parametrize(
    ("raw", "kind", "data"),
    [
        ({"type": "image_url", "image_url": {"url": data_url(RED), "detail": "low"}}, "image", RED),
        ({"type": "image_url", "image_url": data_url(RED, "image/jpeg")}, "image", RED),
        ({"type": "image_url", "image_url": {"url": base64_of(RED)}}, "image", RED),
        ({"type": "input_image", "image_url": "DATA:;base64," + base64_of(RED)}, "image", RED),
        ({"type": "image", "source": {"type": "base64", "data": base64_of(RED)}}, "image", RED),
        (
            {
                "type": "image",
                "source": {"type": "base64", "data": base64_of(RED)},
                "transformations": {"oversized_image": "error"},
            },
            "image",
            RED,
        ),
        ({"type": "input_audio", "input_audio": {"data": base64_of(WAV), "format": "mp3"}}, "audio", WAV),
        ({"type": "audio_url", "audio_url": {"url": data_url(WAV, "audio/wav")}}, "audio", WAV),
        ({"type": "audio_url", "audio_url": base64_of(WAV)}, "audio", WAV),
    ],
)
def test_every_shape_gives_the_file(raw: dict[str, Any], kind: str, data: bytes):
    media = part(raw).media
    assert (media.kind, media.data) == (kind, data)


def test_base64_may_have_line_breaks_no_padding_and_the_characters_of_urls():
    data = RED + b"\xfb\xff\xfe"
    standard = base64.b64encode(data).decode()
    assert "/" in standard
    texts = [
        base64.encodebytes(data).decode(),
        standard.rstrip("="),
        base64.urlsafe_b64encode(data).decode(),
        f"data:image/png; charset=utf-8; base64,{standard}",
        f" data:text/plain;x=1;base64,{standard}\r\n",
        "data:image/png;base64," + quote(standard),
    ]
    assert [media_from_base64(text, "image", "x").data for text in texts] == [data] * len(texts)


@pytest.mark.parametrize(
    ("data", "kind", "words"),
    [
        (b"\0\0\0\x18ftypavif", "image", "is an AVIF image, which is not supported here: send PNG, JPEG, WebP or GIF"),
        (b"\0\0\0\x18ftypheic", "image", "is a HEIC image"),
        (b"II*\0" + bytes(40), "image", "is a TIFF image"),
        (b'<?xml version="1.0"?>\n<svg/>', "image", "is an SVG image"),
        (b"%PDF-1.7", "image", "is a PDF file"),
        (b"ID3" + bytes(20), "image", "is a recording"),
        (RED, "audio", "is an image, which is not supported here: send WAV, MP3"),
        (b"FORM\0\0\0\0AIFF", "audio", "is an AIFF recording"),
        (b"", None, "is an empty file, .* send PNG, JPEG, WebP or GIF or WAV"),
        (b"\0\0", None, "is in a format that is not supported"),
    ],
)
def test_what_is_no_file_for_a_model_is_named(data: bytes, kind: MediaKind | None, words: str):
    with pytest.raises(InvalidInput, match=words):
        media_from_bytes(data, kind, "x")


def test_little_detail_reduces_an_image_and_makes_it_another_one():
    chat = {"type": "image_url", "image_url": {"url": data_url(RED), "detail": "low"}}
    response = {"type": "input_image", "image_url": data_url(RED), "detail": "low"}
    whole = {"type": "input_image", "image_url": data_url(RED), "detail": "high"}
    assert part(chat).media == part(response).media
    assert (part(chat).media.longest, part(whole).media.longest) == (512, 0)
    assert part(chat).media.marker != part(whole).media.marker
    assert part({**whole, "detail": None}).media == part(whole).media


@pytest.mark.parametrize(
    ("raw", "error", "words"),
    [
        ({"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}, UnsupportedParameter, "not fetched"),
        ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, UnsupportedParameter, "not fetched"),
        ({"type": "image_url", "image_url": {"url": "data:image/png,abc"}}, InvalidInput, "base64"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,a$b="}}, InvalidInput, "not valid base64"),
        ({"type": "image_url", "image_url": {"url": 5}}, InvalidInput, "must be the file"),
        ({"type": "image_url", "image_url": {"url": data_url(RED), "detail": "LOW"}}, InvalidInput, "auto, low, high"),
        ({"type": "input_image", "image_url": data_url(RED), "detail": [0]}, InvalidInput, "detail` must be one of"),
        ({"type": "image_url"}, InvalidInput, "must be the file"),
        ({"type": "image_url", "image_url": base64_of(b"<svg></svg>")}, InvalidInput, "PNG, JPEG, WebP or GIF"),
        ({"type": "image_url", "image_url": base64_of(WAV)}, InvalidInput, "PNG, JPEG, WebP or GIF"),
        ({"type": "image_url", "image_url": "A" * (MAX_MEDIA_BYTES * 2)}, InvalidInput, "is larger than"),
        ({"type": "input_audio", "input_audio": {"data": base64_of(RED)}}, InvalidInput, "WAV, MP3, FLAC"),
        ({"type": "audio_url", "audio_url": {"url": data_url(RED)}}, InvalidInput, "WAV, MP3, FLAC"),
        ({"type": "audio_url", "audio_url": {"url": "https://example.com/a.wav"}}, UnsupportedParameter, "not fetched"),
        ({"type": "audio_url", "audio_url": {}}, InvalidInput, "must be the file"),
        ({"type": "audio_url"}, InvalidInput, "must be the file"),
        (
            {"type": "image", "source": {"type": "url"}, "transformations": {"oversized_image": "crop"}},
            InvalidInput,
            "oversized_image` must be one of downsize, error",
        ),
        ({"type": "image", "source": {}, "transformations": 5}, InvalidInput, "must be one of downsize, error"),
        ({"type": "input_image", "file_id": "f1"}, UnsupportedParameter, "no store of files"),
        ({"type": "image", "source": {"type": "file", "file_id": "f1"}}, UnsupportedParameter, "as base64"),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_reason(raw: dict[str, Any], error: type[InvalidInput], words: str):
    with pytest.raises(error, match=words) as caught:
        part(raw)
    assert str(caught.value.fields["parameter"]).startswith("messages[0].content[0]")


def test_equal_files_have_equal_markers_and_others_do_not():
    first, same = (
        part({"type": "image_url", "image_url": data_url(RED)}),
        part({"type": "image_url", "image_url": base64_of(RED)}),
    )
    other = part({"type": "image_url", "image_url": data_url(picture("blue"))})
    assert first.text == same.text != other.text
    assert media_of_parts([first, same, other, TextPart("x")]) == (first.media, other.media)


def test_no_newline_stands_around_a_marker():
    image = part({"type": "image_url", "image_url": data_url(RED)})
    message = Message(role="user", content=(TextPart("a"), TextPart("b"), image, TextPart("c")))
    assert message.text == f"a\nb{image.text}c"


def test_too_many_files_are_refused():
    image = part({"type": "image_url", "image_url": data_url(RED)})
    assert isinstance(image, MediaPart)
    with pytest.raises(InvalidInput, match=f"may have {MAX_MEDIA}"):
        media_of_parts([image] * (MAX_MEDIA + 1))
