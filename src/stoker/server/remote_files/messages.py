"""Resolves the files that a request's messages name: inserts images and recordings from URLs, stored files,
and documents."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from stoker.chat.documents import DOCUMENT_TYPES, has_documents, message_parts, read_documents
from stoker.core.media import MediaKind
from stoker.engine.cards import media_refused
from stoker.errors import FileNotStored, InvalidInput, UnsupportedParameter
from stoker.media.documents import DocumentReader
from stoker.server.api import Call
from stoker.server.batches.batches import Batches, owner_in_store
from stoker.server.batches.files import FileStore
from stoker.server.config import ServerConfig
from stoker.server.remote_files.fetch import Rules, fetch
from stoker.server.remote_files.local import is_local, read_file
from stoker.text.media_parts import MAX_MEDIA, MAX_MEDIA_BYTES, MAX_REQUEST_BYTES

_AT_A_TIME = 4
_READ_AT_A_TIME = 2
_threads = ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="stoker-fetch")
_readers = ThreadPoolExecutor(_READ_AT_A_TIME, thread_name_prefix="stoker-documents")


async def resolve_files(
    call: Call[Any], media: Collection[str], messages: object, where: str, refusal: str | None = None
) -> None:
    """Inserts all files that messages name by URL or id, and replaces documents by their text and images.

    Args:
        call: the request; stored files must belong to its client.
        media: the kinds of files that the model accepts, such as `image`.
        messages: plain JSON in the shape of any API; modified in place.
        where: name of the messages' field in the request, for errors.
        refusal: the reason why the model accepts no images, see `ModelCard.media_refusal`; None = no model is
            chosen yet, and URLs of files that no loaded model accepts stay.

    Raises:
        InvalidInput: a file cannot be downloaded, is too large, or cannot be read.
        FileNotStored: the client has no stored file of that id.
        UnsupportedParameter: a stored file is named, but the server stores no files; or the model does not accept a
            file that is named by URL.
    """
    if has_documents(messages) or any(references(messages, where)):
        if refusal is not None:
            _check_kinds(references(messages, where), media, refusal)
        await call.wait(_resolve(call, media, messages, where))


async def _resolve(call: Call[Any], media: Collection[str], messages: object, where: str) -> None:
    await fetch_files(messages, media, call.config, where)
    stored = [reference for reference in references(messages, where) if reference.file_id]
    if stored:
        files = call.server.part(Batches, _no_store).files
        await take_stored(stored, files, owner_in_store(call.request.scope), where)
    if has_documents(messages):
        reader = call.server.part(DocumentReader, DocumentReader)
        takes_images = "image" in media
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(_readers, _read, messages, reader, takes_images, where)


def _check_kinds(found: Iterable[Reference], media: Collection[str], refusal: str) -> None:
    """Refuses files with URLs that the model does not accept, in the words for those that are sent as base64."""
    for reference in found:
        if reference.url and reference.kind is not None and reference.kind not in media:
            raise media_refused(reference.kind, refusal)


def _read(messages: object, reader: DocumentReader, takes_images: bool, where: str) -> None:
    read_documents(messages, reader, takes_images=takes_images, where=where)


def _no_store() -> NoReturn:
    message = "this server stores no files: send the data, or start it with --files-dir FOLDER (or auto)"
    raise UnsupportedParameter(message, parameter="file_id")


async def take_stored(found: list[Reference], files: FileStore, owner: str, where: str) -> None:
    """Replaces ids of stored files by the files.

    Args:
        found: parts of messages that name stored files.
        files: the store.
        owner: owner that the files must have, see `owner_tag`.
        where: name of the messages' field in the request, for errors.

    Raises:
        FileNotStored: the owner has no file of that id.
        InvalidInput: a file is too large, or all files together are.
    """
    _check_count(found, where)
    num_bytes = 0
    for reference in found:
        record = await files.get(owner, reference.file_id, reference.where)
        num_bytes += record.num_bytes
        if record.num_bytes > MAX_MEDIA_BYTES:
            message = f"`{reference.where}` has {record.num_bytes} bytes: a file may have {MAX_MEDIA_BYTES}"
            raise InvalidInput(message, parameter=reference.where)
        if num_bytes > MAX_REQUEST_BYTES:
            raise InvalidInput(f"the files of `{where}` are too large together", parameter=where)
        reference.put(await asyncio.to_thread(_content, files.path(record), reference))


def _content(path: Path, reference: Reference) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:  # the file was deleted in the meantime
        message = f"the file {reference.file_id[:100]!r} is no longer stored here"
        raise FileNotStored(message, file_id=reference.file_id[:100], parameter=reference.where) from error


async def fetch_files(
    messages: object, media: Collection[str], config: ServerConfig, where: str, rules: Rules | None = None
) -> None:
    """Replaces each URL of a file by a `data:` URL, if the settings allow its kind and the model accepts such files.

    Args:
        messages: plain JSON in the shape of any API; modified in place.
        media: the kinds of files that the model accepts, such as `image`.
        config: says whether files are downloaded, and from which domains, and which folder has local files.
        where: name of the messages' field in the request, for errors.
        rules: replaces the rules of `config`, for tests.

    Raises:
        InvalidInput: there are too many URLs, or one cannot be fetched.
    """
    found = [each for each in references(messages, where) if each.url and (each.kind is None or each.kind in media)]
    found = [each for each in found if (config.media_path if each.is_local else config.media_urls != "off")]
    _check_count(found, where)
    rules = rules or Rules(domains=config.allowed_media_domains)
    names = {reference.url: reference.where for reference in reversed(found)}
    loop = asyncio.get_running_loop()
    fetching = [
        loop.run_in_executor(_threads, _content_of, url, config.media_path, rules, path) for url, path in names.items()
    ]
    files = dict(zip(names, await asyncio.gather(*fetching), strict=True))
    if sum(map(len, files.values())) > MAX_REQUEST_BYTES:
        raise InvalidInput(f"the files of `{where}` are too large together", parameter=where)
    for reference in found:
        reference.put(files[reference.url])


def _content_of(url: str, folder: str, rules: Rules, where: str) -> bytes:
    if is_local(url):
        return read_file(url, folder, MAX_MEDIA_BYTES, where)
    return fetch(url, MAX_MEDIA_BYTES, rules, where)


def _check_count(found: list[Reference], where: str) -> None:
    if len(found) > MAX_MEDIA:
        raise InvalidInput(f"`{where}` names {len(found)} files: a request may have {MAX_MEDIA}", parameter=where)


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
    def kind(self) -> MediaKind | None:
        """The kind of the file; None = a document."""
        if self.part.get("type") in DOCUMENT_TYPES:
            return None
        return "audio" if self.part.get("type") == "audio_url" else "image"

    @property
    def is_local(self) -> bool:
        """Whether the URL names a file of this machine."""
        return is_local(self.url)

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
            case {"type": "audio_url"}:
                part["audio_url"] = {"url": encoded}
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
        case {"type": "audio_url", "audio_url": {"url": str(url)} | str(url)}:
            return _by_url(part, f"{where}.audio_url", url)
        case {"type": "input_file", "file_url": str(url)}:
            return _by_url(part, f"{where}.file_url", url)
        case _:
            return None


def _by_url(part: dict[str, Any], where: str, url: str) -> Reference | None:
    is_file = is_local(url) or url[:8].lower().startswith(("http://", "https://"))
    return Reference(part, where, url=url) if is_file else None
