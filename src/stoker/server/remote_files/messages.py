"""Resolves the files that a request's messages name: inserts images from URLs, stored files, and documents."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

from stoker.chat.documents import has_documents, read_documents
from stoker.engine.cards import ModelCard
from stoker.errors import FileNotStored, InvalidInput, UnsupportedParameter
from stoker.media.documents import DocumentReader
from stoker.server.api import Call
from stoker.server.batches.batches import Batches
from stoker.server.batches.files import FileStore, owner_tag
from stoker.server.config import ServerConfig
from stoker.server.remote_files.fetch import Rules, fetch
from stoker.server.remote_files.references import Reference, references
from stoker.text.media_parts import MAX_MEDIA, MAX_MEDIA_BYTES, MAX_REQUEST_BYTES

_AT_A_TIME = 4
_READ_AT_A_TIME = 2
_threads = ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="stoker-fetch")
_readers = ThreadPoolExecutor(_READ_AT_A_TIME, thread_name_prefix="stoker-documents")


async def resolve_files(call: Call[Any], card: ModelCard, messages: object, where: str) -> None:
    """Inserts all files that messages name by URL or id, and replaces documents by their text and images.

    Args:
        call: the request; stored files must belong to its client.
        card: card of the model.
        messages: plain JSON in the shape of any API; modified in place.
        where: name of the messages' field in the request, for errors.

    Raises:
        InvalidInput: a file cannot be downloaded, is too large, or cannot be read.
        FileNotStored: the client has no stored file of that id.
        UnsupportedParameter: a stored file is named, but the server stores no files.
    """
    if has_documents(messages) or any(references(messages, where)):
        await call.wait(_resolve(call, card, messages, where))


async def _resolve(call: Call[Any], card: ModelCard, messages: object, where: str) -> None:
    await fetch_files(messages, card, call.config, where)
    stored = [reference for reference in references(messages, where) if reference.file_id]
    if stored:
        await take_stored(stored, call.server.part(Batches, _no_store).files, owner_tag(call.owner), where)
    if has_documents(messages):
        reader = call.server.part(DocumentReader, DocumentReader)
        takes_images = "image" in card.media
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(_readers, _read, messages, reader, takes_images, where)


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
    messages: object, card: ModelCard, config: ServerConfig, where: str, rules: Rules | None = None
) -> None:
    """Replaces each URL of a file by a `data:` URL, if the settings allow downloads and the model accepts such files.

    Args:
        messages: plain JSON in the shape of any API; modified in place.
        card: card of the model.
        config: says whether files are downloaded, and from which domains.
        where: name of the messages' field in the request, for errors.
        rules: replaces the rules of `config`, for tests.

    Raises:
        InvalidInput: there are too many URLs, or one cannot be fetched.
    """
    if config.media_urls == "off":
        return
    takes_images = "image" in card.media
    found = [each for each in references(messages, where) if each.url and (takes_images or not each.is_image)]
    _check_count(found, where)
    rules = rules or Rules(domains=config.allowed_media_domains)
    names = {reference.url: reference.where for reference in reversed(found)}
    loop = asyncio.get_running_loop()
    fetching = [loop.run_in_executor(_threads, fetch, url, MAX_MEDIA_BYTES, rules, path) for url, path in names.items()]
    files = dict(zip(names, await asyncio.gather(*fetching), strict=True))
    if sum(map(len, files.values())) > MAX_REQUEST_BYTES:
        raise InvalidInput(f"the files of `{where}` are too large together", parameter=where)
    for reference in found:
        reference.put(files[reference.url])


def _check_count(found: list[Reference], where: str) -> None:
    if len(found) > MAX_MEDIA:
        raise InvalidInput(f"`{where}` names {len(found)} files: a request may have {MAX_MEDIA}", parameter=where)
