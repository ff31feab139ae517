"""Finds the parts of messages that name a file by a URL or an id, and inserts the file. Downloads nothing itself."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stoker.chat.documents import DOCUMENT_TYPES, message_parts


@dataclass(frozen=True, slots=True)
class Reference:
    """A part of a message that names a file by `url` or by `file_id`."""

    part: dict[str, Any]
    """The part, as plain JSON of the request; `put` changes it."""
    where: str
    """Path of the URL or id in the request."""
    url: str = ""
    file_id: str = ""
    """Id of a stored file. Exactly one of `url` and `file_id` is not empty."""

    @property
    def is_image(self) -> bool:
        """Whether the file must be an image, as opposed to a document."""
        return self.part.get("type") not in DOCUMENT_TYPES

    def put(self, data: bytes) -> None:
        """Replaces the URL or id in the part by the content of the file, in base64."""
        encoded = f"data:;base64,{base64.b64encode(data).decode()}"
        part = self.part
        match part:
            case {"source": Mapping()}:
                part["source"] = {"type": "base64", "data": encoded}
            case {"file": Mapping()}:
                part["file"] = {**part["file"], "file_data": encoded}
            case {"type": "input_file"}:
                part["file_data"] = encoded
            case {"image_url": Mapping()}:
                part["image_url"] = {**part["image_url"], "url": encoded}
            case _:
                part["image_url"] = encoded
        part.pop("file_id", None)


def references(messages: object, where: str) -> Iterator[Reference]:
    """All parts of messages that name a file; `where` is the path of the messages in the request."""
    found = (_reference(place.fields, place.where) for place in message_parts(messages, where))
    return (reference for reference in found if reference is not None)


def _reference(part: dict[str, Any], where: str) -> Reference | None:
    match part:
        case {"type": "image" | "document", "source": {"type": "file", "file_id": str(file_id)}}:
            return Reference(part, f"{where}.source.file_id", file_id=file_id)
        case {"type": "file", "file": {"file_id": str(file_id)}}:
            return Reference(part, f"{where}.file.file_id", file_id=file_id)
        case {"type": "input_file" | "input_image", "file_id": str(file_id)}:
            return Reference(part, f"{where}.file_id", file_id=file_id)
        case {"type": "image" | "document", "source": {"url": str(url)} | str(url)}:
            return _by_url(part, f"{where}.source", url)
        case {"type": "image_url" | "input_image", "image_url": {"url": str(url)} | str(url)}:
            return _by_url(part, f"{where}.image_url", url)
        case {"type": "input_file", "file_url": str(url)}:
            return _by_url(part, f"{where}.file_url", url)
        case _:
            return None


def _by_url(part: dict[str, Any], where: str, url: str) -> Reference | None:
    is_elsewhere = url[:8].lower().startswith(("http://", "https://"))
    return Reference(part, where, url=url) if is_elsewhere else None
