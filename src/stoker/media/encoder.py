"""Computes embeddings ("rows") of images and recordings: decodes files, lays them out, encodes and caches their parts.

```
file --> [decoder process] --> pixels --> [encoder process] --> layout: tokens and spans
                                                          --> rows of each span, when an engine asks for them
```

A file that crashes the encoder's process is retried once, alone, and then refused. Other files wait for the next
process.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeVar

import msgspec

from stoker.core.media import Layout, Media, MediaKind, Span
from stoker.errors import InvalidInput, MediaCrashed, ModelUnsupported
from stoker.media.child import Child, ChildDied
from stoker.media.decoder import ImageDecoder, SoundDecoder
from stoker.media.encoding import Described, Encode, Encoded, Laid, Lay, Reply, RowsPart, reply_decoder
from stoker.media.frames import Refused
from stoker.media.kept import Kept
from stoker.media.load import EncoderLoad
from stoker.media.plain import BYTES_OF_SAMPLE

_MAX_KEPT_BYTES = 256 << 20
_MAX_LAID = 4096
_MAX_CRASHES = 2
_KEY_BYTES = 16
_QUIET = {"GGML_NO_BACKTRACE": "1"}
"""Keeps ggml from running a debugger that prints every frame before the process ends."""
ReplyT = TypeVar("ReplyT", bound=Reply)
_WORDS: Mapping[MediaKind, str] = {"image": "an image", "audio": "a recording"}


@dataclass(frozen=True, slots=True)
class _Decoded:
    """A decoded file."""

    kind: MediaKind
    width: int
    """Width of an image in pixels, or length of a recording in samples."""
    height: int
    """Height of an image in pixels; 1 for a recording."""
    data: bytes
    """RGB pixels, row after row; or samples as 4-byte floats."""


@dataclass(frozen=True, slots=True)
class _Laid:
    """A file whose layout in a prompt is known."""

    kind: MediaKind
    width: int
    height: int
    """See `_Decoded`."""
    digest: bytes
    """Digest of the file's pixels or samples, and of the projector."""
    layout: Layout

    def part_of(self, key: bytes) -> int:
        """The index of the part with this key, among the parts of the layout that are rows."""
        spans = [part for part in self.layout if isinstance(part, Span)]
        return next(index for index, span in enumerate(spans) if span.key == key)


class MediaEncoder:
    """Encodes images and recordings for all replicas of a model, with one child process that loads the projector.

    Not thread-safe: belongs to one event loop. The process ends when the last user calls `close`.

    Args:
        command: starts the program that encodes.
        identify: returns a digest of the projector and of everything else that rows depend on; it may read files.
        max_kept_bytes: maximum size of cached rows; the least recently used ones are evicted first.
    """

    def __init__(
        self, command: Sequence[str], identify: Callable[[], bytes], *, max_kept_bytes: int = _MAX_KEPT_BYTES
    ) -> None:
        self._child = Child[Reply](command, "the projector", reply_decoder, _QUIET)
        self._identify = identify
        self._identity = b""
        """Result of `identify`; empty until it is first needed."""
        self._images, self._sounds = ImageDecoder(), SoundDecoder()
        self._laid: OrderedDict[str, _Laid] = OrderedDict()
        """Layouts by the files' markers, least recently used first."""
        self._kept = Kept[bytes](max_kept_bytes)
        """Cached rows by the key of their span."""
        self._coming: dict[bytes, asyncio.Task[bytes]] = {}
        """Tasks that compute rows, or wait for their turn, by the key of the span."""
        self._turn = asyncio.Lock()
        self._crashes: dict[bytes, int] = {}
        """How often the process crashed while it encoded a file, by the file's digest."""
        self._last_digest = b""
        self._num_users = 0
        self.num_encoded = 0
        """Number of file parts that were encoded since the start."""
        self._encode_s, self._num_hits, self._num_crashes = 0.0, 0, 0

    @property
    def pid(self) -> int | None:
        """Id of the process that encodes; None = no process is running."""
        return self._child.pid

    @property
    def num_restarts(self) -> int:
        return self._child.num_restarts

    def load(self) -> EncoderLoad:
        """Current load and totals of the encoder, for metrics."""
        return EncoderLoad(
            num_queued=len(self._coming),
            kept_bytes=self._kept.num_bytes,
            num_encoded=self.num_encoded,
            encode_s=self._encode_s,
            num_hits=self._num_hits,
            num_crashes=self._num_crashes,
        )

    def open(self) -> None:
        """Registers one more engine that uses the encoder."""
        self._num_users += 1

    async def close(self) -> None:
        """Unregisters an engine. When the last one is gone, the process ends."""
        self._num_users -= 1
        if self._num_users <= 0:
            for task in self._coming.values():
                task.cancel()
            await self._child.close()

    async def start(self) -> Described:
        """The properties of the projector. It is loaded first if necessary.

        Raises:
            ModelUnsupported: the projector cannot be used.
            BackendError: the process cannot be started.
        """
        if not self._identity:
            try:
                self._identity = await asyncio.to_thread(self._identify)
            except OSError as error:
                raise ModelUnsupported(f"the projector cannot be read: {error}") from error
        described = await self._child.start()
        assert isinstance(described, Described)
        return described

    async def check(self, width: int) -> None:
        """Loads the projector, if it is not loaded, and checks the width of its rows.

        Raises:
            ModelUnsupported: the projector's rows have another width, or it cannot be used.
            BackendError: the process cannot be started.
        """
        found = (await self.start()).width
        if found != width:
            message = f"the projector's embeddings have {found} numbers, but the model needs {width}"
            raise ModelUnsupported(message)

    async def layout(self, media: Media) -> Layout:
        """The layout of a file in a prompt. Nothing is encoded.

        Raises:
            InvalidInput: the file cannot be decoded, or is refused.
            BackendError: the process cannot be started.
            Timeout: the file takes too long to decode.
        """
        if (known := self._laid.get(media.marker)) is not None:
            self._laid.move_to_end(media.marker)
            return known.layout
        rate = (await self.start()).sample_rate
        decoded = await self._decoded(media, rate)
        digest = await asyncio.to_thread(self._digest, decoded)
        self._check(digest, media.kind)
        laid = await self._retried(digest, Lay(media.kind, decoded.width, decoded.height))
        layout = tuple(_spans(digest, laid, media.kind))
        self._laid[media.marker] = _Laid(media.kind, decoded.width, decoded.height, digest, layout)
        if len(self._laid) > _MAX_LAID:
            self._laid.popitem(last=False)
        return layout

    async def rows(self, media: Media, key: bytes) -> bytes:
        """The embeddings of one span of the file's layout: 4-byte floats, row after row. Cached by the file's content.

        Raises:
            InvalidInput: the file cannot be decoded.
            MediaCrashed: the file crashed the process twice.
            BackendError: the file cannot be encoded.
            Timeout: decoding or encoding takes too long.
        """
        if (kept := self._kept.get(key)) is not None:
            self._num_hits += 1
            return kept
        task = self._coming.get(key)
        self._num_hits += task is not None
        if task is None:
            task = self._coming[key] = asyncio.create_task(self._make(media, key), name="stoker-encode")
            task.add_done_callback(lambda _: self._coming.pop(key, None))
            task.add_done_callback(_note_failure)
        return await asyncio.shield(task)

    async def _make(self, media: Media, key: bytes) -> bytes:
        await self.layout(media)
        laid = self._laid[media.marker]
        async with self._turn:
            self._check(laid.digest, laid.kind)
            begun_s = time.monotonic()
            while True:
                try:
                    values = await self._encode(media, laid, laid.part_of(key))
                    break
                except ChildDied as error:
                    self._last_digest = b""
                    self._num_crashes += error.is_crash
                    self._crashes[laid.digest] = self._crashes.get(laid.digest, 0) + error.is_crash
                    self._check(laid.digest, laid.kind)
            self._encode_s += time.monotonic() - begun_s
        self.num_encoded += 1
        self._kept.put(key, values)
        return values

    async def _encode(self, media: Media, laid: _Laid, part: int) -> bytes:
        """Encodes one part. The pixels are sent only if the process does not have them from the previous part."""
        order = Encode(laid.kind, laid.width, laid.height, part, laid.digest, b"")
        if self._last_digest == laid.digest:
            reply = await self._child.ask(order)
            if not (isinstance(reply, Refused) and reply.needs_pixels):
                return _checked(reply, Encoded).values
        decoded = await self._decoded(media, (await self.start()).sample_rate)
        self._last_digest = laid.digest
        reply = await self._child.ask(msgspec.structs.replace(order, pixels=decoded.data))
        return _checked(reply, Encoded).values

    async def _decoded(self, media: Media, rate: int) -> _Decoded:
        if media.kind == "audio":
            samples = await self._sounds.samples(media, rate)
            return _Decoded("audio", len(samples) // BYTES_OF_SAMPLE, 1, samples)
        picture = await self._images.picture(media)
        return _Decoded("image", picture.width, picture.height, picture.pixels)

    async def _retried(self, digest: bytes, order: Lay) -> Laid:
        """Retries an order after a crash while nothing is encoded: the crash may be due to a file being encoded."""
        with contextlib.suppress(ChildDied):
            return _checked(await self._child.ask(order), Laid)
        async with self._turn:
            for _ in range(_MAX_CRASHES):
                with contextlib.suppress(ChildDied):
                    return _checked(await self._child.ask(order), Laid)
        self._crashes[digest] = _MAX_CRASHES
        raise _crashed(order.kind)

    def _check(self, digest: bytes, kind: MediaKind) -> None:
        if self._crashes.get(digest, 0) >= _MAX_CRASHES:
            raise _crashed(kind)

    def _digest(self, file: _Decoded) -> bytes:
        sizes = f"{file.width}x{file.height}" if file.kind == "image" else f"{file.kind} {file.width}"
        return blake2b(b"\0".join((self._identity, sizes.encode(), file.data)), digest_size=_KEY_BYTES).digest()


def _checked(reply: Reply, kind: type[ReplyT]) -> ReplyT:
    """The reply, checked to be of this kind. Raises `InvalidInput` if the process refused the order."""
    if isinstance(reply, Refused):
        raise InvalidInput(f"a file is refused: {reply.message}", parameter="messages")
    assert isinstance(reply, kind), "every order has one kind of reply"
    return reply


def _spans(digest: bytes, laid: Laid, kind: MediaKind) -> list[int | str | Span]:
    found: list[int | str | Span] = []
    num_spans = 0
    for part in laid.parts:
        if isinstance(part, RowsPart):
            key = blake2b(digest + num_spans.to_bytes(4, "little"), digest_size=_KEY_BYTES).digest()
            found.append(Span(key, part.length, kind, part.grid, part.is_whole))
            num_spans += 1
        else:
            found.append(part)
    return found


def _crashed(kind: MediaKind) -> MediaCrashed:
    return MediaCrashed(f"{_WORDS[kind]} ends the process that encodes it", parameter="messages")


def _note_failure(task: asyncio.Task[bytes]) -> None:
    """Marks the task's error as retrieved: waiters get it from the task, and without waiters no log is needed."""
    if not task.cancelled():
        task.exception()
