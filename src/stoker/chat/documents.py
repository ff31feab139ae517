"""Replaces documents in messages, in the formats of all API dialects, with their text and images of their pages.

Images are made only for a model that accepts them. URLs and file ids are not resolved here: see `server/remote_files`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from stoker.errors import InvalidInput, UnsupportedParameter
from stoker.media.documents import DocumentReader
from stoker.media.pages import PAGE_SIDE, SMALL_PAGE_SIDE, Page
from stoker.text.media_parts import MAX_MEDIA_BYTES, MediaPart, decoded_file, media_from_bytes
from stoker.text.messages import Part, PartGroup, TextPart, content_parts

DOCUMENT_TYPES = ("document", "file", "input_file", "search_result")
"""Types of parts that are documents."""

_MAX_DEPTH = 8
_PDF, _PDF_WITHIN = b"%PDF-", 1024
_NESTED = ("content", "output", "source")
"""Fields of a message or part that may contain nested parts."""


class PartPlace(NamedTuple):
    """The place of a message or part, as plain JSON, in the list `parts` that contains it at index `number`."""

    parts: list[Any]
    number: int
    fields: dict[str, Any]
    where: str
    """Path of the message or part in the request, for errors."""


def message_parts(value: object, where: str, depth: int = _MAX_DEPTH) -> Iterator[PartPlace]:
    """Yields every message and part of any dialect, up to `depth` levels deep; `where` is the path of `value`."""
    if depth == 0:
        return
    if isinstance(value, list):
        items = cast("list[Any]", value)
        for index, item in enumerate(items):
            path = f"{where}[{index}]"
            if isinstance(item, dict):
                yield PartPlace(items, index, cast("dict[str, Any]", item), path)
            yield from message_parts(cast("object", item), path, depth - 1)
    elif isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        for name in _NESTED:
            yield from message_parts(fields.get(name), f"{where}.{name}", depth - 1)


def has_documents(messages: object) -> bool:
    """Whether any part of the messages is a document."""
    return any(place.fields.get("type") in DOCUMENT_TYPES for place in message_parts(messages, ""))


def read_documents(messages: object, reader: DocumentReader, *, takes_images: bool, where: str) -> None:
    """Replaces each document in the messages with its content, in place. This blocks, so run it on a separate thread.

    Args:
        messages: plain JSON, in the format of any dialect; it is modified.
        reader: reads PDF files.
        takes_images: the model accepts images, so pages become images, too.
        where: name of the messages' field in the request, for errors.

    Raises:
        InvalidInput: a document is malformed, damaged, encrypted, too large, or has no content that this model accepts.
        UnsupportedParameter: a document has an unsupported format, or is a URL.
    """
    for place in list(message_parts(messages, where)):
        if place.fields.get("type") in DOCUMENT_TYPES:
            said = read_document(place.fields, reader, takes_images=takes_images, where=place.where)
            place.parts[place.number] = said


def read_document(fields: Mapping[str, Any], reader: DocumentReader, *, takes_images: bool, where: str) -> PartGroup:
    """The content of one document as text and image parts. See `read_documents` for arguments and errors."""
    if fields.get("type") == "document":
        about, content = _anthropic(fields, where)
    elif fields.get("type") == "search_result":
        about, content = _search_result(fields, where)
    else:
        about, content = _openai(fields, where)
    if isinstance(content, bytes):
        side = SMALL_PAGE_SIDE if fields.get("detail") == "low" else PAGE_SIDE
        return read_file(content, about, reader, side=side if takes_images else 0, where=where)
    if isinstance(content, str):
        return PartGroup((TextPart("\n".join([*about, content])),))
    return PartGroup((*(TextPart(line) for line in about), *content))


def read_file(data: bytes, about: Sequence[str], reader: DocumentReader, *, side: int, where: str) -> PartGroup:
    """The content of a file as text and image parts. The first bytes decide whether it is a PDF file or text.

    Args:
        data: the content of the file.
        about: lines of text to put before the content, such as the file's name.
        reader: reads PDF files.
        side: longer side of the images of its pages, in pixels; 0 = the model takes no images.
        where: the file's path in the request, for the error.

    Raises:
        InvalidInput, UnsupportedParameter: see `read_documents`.
    """
    if _PDF in data[:_PDF_WITHIN]:
        return PartGroup(tuple(_page_parts(about, reader.pages(data, side, where), where)))
    return PartGroup((TextPart("\n".join([*about, _as_text(data, where)])),))


def _anthropic(fields: Mapping[str, Any], where: str) -> tuple[list[str], str | bytes | Sequence[Part]]:
    """The title and context of a document, and its content: text, the bytes of a file, or parts."""
    about = [text for name in ("title", "context") if isinstance(text := fields.get(name), str)]
    match fields.get("source"):
        case {"type": "text", "data": str(text)}:
            return about, text
        case {"type": "base64", "data": data}:
            return about, decoded_file(data, f"{where}.source.data")
        case {"type": "content", "content": content}:
            return about, content_parts(content, f"{where}.source.content")
        case {"type": "url", "url": url}:
            return about, decoded_file(url, f"{where}.source.url")
        case _:
            message = f"`{where}.source` of a document must be of type base64, text, content, url or file"
            raise InvalidInput(message, parameter=f"{where}.source")


def _search_result(fields: Mapping[str, Any], where: str) -> tuple[list[str], Sequence[Part]]:
    """The title and the source of a search result in Anthropic's format, and its content."""
    about = [text for name in ("title", "source") if isinstance(text := fields.get(name), str)]
    return about, content_parts(fields.get("content"), f"{where}.content")


def _openai(fields: Mapping[str, Any], where: str) -> tuple[list[str], bytes]:
    given: object = fields
    if fields.get("type") == "file":
        given, where = fields.get("file"), f"{where}.file"
    if not isinstance(given, Mapping):
        raise InvalidInput(f"`{where}` must be an object", parameter=where)
    file = cast("Mapping[str, Any]", given)
    name = file.get("filename")
    about = [name] if isinstance(name, str) and name else []
    for source in ("file_data", "file_url"):
        if file.get(source) is not None:
            return about, decoded_file(file[source], f"{where}.{source}")
    message = f"`{where}` must have the file as base64 text in `file_data`, or the id of a stored file in `file_id`"
    raise InvalidInput(message, parameter=where)


def _as_text(data: bytes, where: str) -> str:
    if len(data) > MAX_MEDIA_BYTES:
        raise InvalidInput(f"`{where}` has {len(data)} bytes: a file may have {MAX_MEDIA_BYTES}", parameter=where)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        message = f"`{where}` has an unsupported format: send a PDF file, or UTF-8 text"
        raise UnsupportedParameter(message, parameter=where)
    return text


def _page_parts(about: Sequence[str], pages: Sequence[Page], where: str) -> Iterator[Part]:
    """Yields the text and the image of each page in turn; without images, a single text part for all pages."""
    if not any(page.image or page.text.strip() for page in pages):
        message = f"`{where}`: the PDF file has only images and no text, and this model takes no images"
        raise InvalidInput(message, parameter=where)
    lines = list(about)
    for number, page in enumerate(pages, 1):
        lines += [f"[page {number} of {len(pages)}]", page.text]
        if page.image:
            yield TextPart("\n".join([*lines, ""]))
            yield MediaPart(media_from_bytes(page.image, "image", where))
            lines = []
    if lines:
        yield TextPart("\n".join(lines))
