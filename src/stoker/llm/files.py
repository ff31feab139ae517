"""Images that callers hand to `LLM.chat` as paths or bytes, and the thread that makes rows of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import cast

from stoker.core.media import MediaKind
from stoker.engine.cards import ModelCard, media_refused
from stoker.engine.protocol import GiveRows, RowsWanted, Submit
from stoker.engine.request_media import RequestMedia
from stoker.errors import InvalidInput, ModelNotLoaded, StokerError
from stoker.media.encoder import MediaEncoder
from stoker.text.media_parts import MediaPart, media_from_bytes

_STOP_S = 30.0
_KINDS: Mapping[str, MediaKind] = {"image": "image", "audio": "audio"}


def with_files(message: object, where: str) -> object:
    """The same message, with what its parts `{"type": "image", "image": path or bytes}` refer to in them.

    Raises:
        InvalidInput: a file cannot be read, or is no image of a known format.
    """
    if not isinstance(message, Mapping):
        return message
    fields = cast("Mapping[str, object]", message)
    content = fields.get("content")
    if not isinstance(content, list | tuple):
        return fields
    parts = cast("Sequence[object]", content)
    found = [_with_file(part, f"{where}.content[{index}]") for index, part in enumerate(parts)]
    return {**fields, "content": found}


def _with_file(part: object, where: str) -> object:
    if not isinstance(part, Mapping):
        return part
    fields = cast("Mapping[str, object]", part)
    name = fields.get("type")
    kind = _KINDS.get(name) if isinstance(name, str) else None
    given = fields.get(kind) if kind is not None else None
    if kind is None or given is None:
        return fields
    where = f"{where}.{kind}"
    if isinstance(given, bytes | bytearray):
        return MediaPart(media_from_bytes(bytes(given), kind, where))
    if not isinstance(given, str | PathLike):
        raise InvalidInput(f"`{where}` must be a path or bytes, not {type(given).__name__}", parameter=where)
    try:
        data = Path(cast("str", given)).expanduser().read_bytes()
    except OSError as error:
        raise InvalidInput(f"`{where}`: {given} cannot be read: {error.strerror}", parameter=where) from error
    return MediaPart(media_from_bytes(data, kind, where))


class SessionMedia:
    """The files of the requests of a session. Safe to use from several threads; its own begins with the first file.

    Args:
        encoder: makes rows; None = the model takes no files.
        card: of the model.
        give: takes rows for the engine, on this thread.
        fail: ends a request, on this thread.
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
        """Parts of files that were encoded, since the start."""
        return 0 if self._encoder is None else self._encoder.num_encoded

    def placed(self, submit: Submit) -> Submit:
        """See `RequestMedia.placed`. Waits for the decoder."""
        if not submit.media:
            return submit
        if self._encoder is None:
            raise media_refused(submit.media[0].kind)
        placing: Future[Submit] = asyncio.run_coroutine_threadsafe(
            self._requests.placed(submit, self._card), self._started(self._encoder)
        )
        return placing.result()  # each of its waits has a bound

    def on_wanted(self, event: RowsWanted) -> None:
        """The engine asks for rows, on its own thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._requests.on_wanted, event)

    def forget(self, request_id: str) -> None:
        """A request has ended."""
        loop = self._loop
        if loop is not None and not self._is_closed:
            loop.call_soon_threadsafe(self._requests.forget, request_id)

    def close(self) -> None:
        """Ends the thread and the encoder's process. Calling it twice is allowed."""
        with self._starting:
            was_closed, self._is_closed = self._is_closed, True
        if was_closed or self._loop is None or self._thread is None or self._encoder is None:
            return
        with suppress(TimeoutError, CancelledError):  # it is killed, and only its end is not seen
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
