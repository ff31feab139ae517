"""Files that are passed to `LLM.chat` as paths or bytes, and the thread that has their embeddings computed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import cast

from stoker.chat.documents import DOCUMENT_TYPES, read_document, read_file
from stoker.core.media import MediaKind
from stoker.engine.cards import ModelCard, media_refused
from stoker.engine.protocol import GiveRows, RowsWanted, Submit
from stoker.engine.request_media import RequestMedia
from stoker.errors import InvalidInput, ModelNotLoaded, StokerError
from stoker.media.documents import DocumentReader
from stoker.media.encoder import MediaEncoder
from stoker.media.pages import PAGE_SIDE
from stoker.text.media_parts import MediaPart, media_from_bytes

_STOP_S = 30.0
_KINDS = frozenset({"image", "audio", "file"})
_documents = DocumentReader()
"""Shared by all models of this process. It runs a child process only during a call."""


def with_files(message: object, where: str, *, takes_images: bool) -> object:
    """The message, with the content of the files to which its parts refer.

    Such parts are `{"type": "image", "image": path or bytes}`, likewise `audio`, and `{"type": "file", "file": path or
    bytes}` for a PDF or text file. Documents in the formats of the server's APIs are read, too.

    Args:
        message: the message as the caller gave it; anything but a mapping with a list of parts is returned unchanged.
        where: path of the message in the request, for errors.
        takes_images: the model accepts images, so pages of PDF files become images, too.

    Raises:
        InvalidInput: a file cannot be read, or has an unknown format.
    """
    if not isinstance(message, Mapping):
        return message
    fields = cast("Mapping[str, object]", message)
    content = fields.get("content")
    if not isinstance(content, list | tuple):
        return fields
    parts = cast("Sequence[object]", content)
    side = PAGE_SIDE if takes_images else 0
    found = [_with_file(part, f"{where}.content[{index}]", side) for index, part in enumerate(parts)]
    return {**fields, "content": found}


def _with_file(part: object, where: str, side: int) -> object:
    if not isinstance(part, Mapping):
        return part
    fields = cast("Mapping[str, object]", part)
    name = fields.get("type")
    kind = name if isinstance(name, str) else ""
    given = fields.get(kind)
    if kind in DOCUMENT_TYPES and (kind != "file" or isinstance(given, Mapping)):
        return read_document(fields, _documents, takes_images=side > 0, where=where)
    if kind not in _KINDS or given is None:
        return fields
    where = f"{where}.{kind}"
    data = _content(given, where)
    if kind == "file":
        about = [] if isinstance(given, bytes | bytearray) else [Path(str(given)).name]
        return read_file(data, about, _documents, side=side, where=where)
    return MediaPart(media_from_bytes(data, cast("MediaKind", kind), where))


def _content(given: object, where: str) -> bytes:
    if isinstance(given, bytes | bytearray):
        return bytes(given)
    if not isinstance(given, str | PathLike):
        raise InvalidInput(f"`{where}` must be a path or bytes, not {type(given).__name__}", parameter=where)
    try:
        return Path(cast("str", given)).expanduser().read_bytes()
    except OSError as error:
        raise InvalidInput(f"`{where}`: {given} cannot be read: {error.strerror}", parameter=where) from error


class SessionMedia:
    """The images and recordings in the requests of one session. Safe to use from several threads.

    The first file starts a thread with an event loop, on which the encoder runs. `close` ends it.

    Args:
        encoder: computes the embeddings (rows) of files; None = the model takes no files.
        card: the card of the model.
        give: receives rows for the engine; called on the encoder's thread.
        fail: ends a request with an error; called on the encoder's thread.
    """

    def __init__(
        self,
        encoder: MediaEncoder | None,
        card: ModelCard,
        give: Callable[[GiveRows], None],
        fail: Callable[[str, StokerError], None],
    ) -> None:
        self._encoder = encoder
        self._card = card
        self._requests = RequestMedia(encoder, give, fail)
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False

    @property
    def num_encoded(self) -> int:
        """Number of file parts that were encoded since the start."""
        return 0 if self._encoder is None else self._encoder.num_encoded

    def placed(self, submit: Submit) -> Submit:
        """See `RequestMedia.placed`. Blocks until the files are decoded and laid out."""
        if not submit.media:
            return submit
        if self._encoder is None:
            raise media_refused(submit.media[0].kind, self._card.media_refusal)
        placing: Future[Submit] = asyncio.run_coroutine_threadsafe(
            self._requests.placed(submit, self._card), self._started(self._encoder)
        )
        return placing.result()  # bounded: every wait in `placed` has a timeout

    def on_wanted(self, event: RowsWanted) -> None:
        """Handles the engine's request for rows. Called on the engine's thread, so it does not wait."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._requests.on_wanted, event)

    def forget(self, request_id: str) -> None:
        """Frees what is kept for a request that has ended."""
        loop = self._loop
        if loop is not None and not self._is_closed:
            loop.call_soon_threadsafe(self._requests.forget, request_id)

    def close(self) -> None:
        """Ends the thread and the encoder's process. Calling it twice is allowed."""
        with self._starting:
            was_closed, self._is_closed = self._is_closed, True
        if was_closed or self._loop is None or self._thread is None or self._encoder is None:
            return
        with suppress(TimeoutError, CancelledError):  # the process was killed, only its exit was not observed
            asyncio.run_coroutine_threadsafe(self._encoder.close(), self._loop).result(_STOP_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_S)

    def _started(self, encoder: MediaEncoder) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._is_closed:
                raise ModelNotLoaded("the model was closed")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._run, args=(self._loop,), name="stoker-media", daemon=True)
                self._thread.start()
                encoder.open()
            return self._loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.run_forever()
        loop.close()
