"""Transcribes recordings: decodes files, and has a child process transcribe them round-robin, segment by segment.

```
file --> [decoder process] --> samples --> [transcriber process] --> language, then segments on request
```
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from stoker.core.media import Media
from stoker.core.speech import Segment, SpeechInfo, Wish
from stoker.errors import InvalidInput, MediaCrashed
from stoker.media.child import Child, ChildDied
from stoker.media.decoder import SoundDecoder
from stoker.media.frames import Refused
from stoker.media.load import TranscriberLoad
from stoker.media.plain import BYTES_OF_SAMPLE
from stoker.media.transcribing import (
    Begin,
    Begun,
    Continue,
    Described,
    Drop,
    Next,
    Order,
    Reply,
    reply_decoder,
)

_AT_A_TIME = 4
"""Maximum number of recordings in the process at the same time. Each takes up to about 200 MiB."""
_MAX_CRASHES = 2
_OFFLINE = {"HF_HUB_OFFLINE": "1"}


@dataclass(frozen=True, slots=True)
class Heard:
    """Properties of a recording that are known before its first segment."""

    language: str
    """Code of the spoken language, such as `en`."""
    duration_s: float


@dataclass(slots=True)
class _Job:
    """A recording that is being transcribed."""

    number: int
    samples: bytes
    wish: Wish
    incarnation: int = 0
    """Number of the process (counted from 1, per restart) that has the recording; 0 = none."""
    offset_s: float = 0.0
    """Position in the recording where the current process began, in seconds: above 0 after a restart."""
    heard_s: float = 0.0
    """End of the last segment, in seconds from the beginning of the recording."""
    num_segments: int = 0
    num_crashes: int = 0
    """How often the process crashed while it worked on this recording."""


class Transcriber:
    """A Whisper model in a child process. Not thread-safe: belongs to one event loop. The owner calls `close`.

    Args:
        command: starts the program that transcribes.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._child = Child[Reply](command, "the Whisper model", reply_decoder, _OFFLINE)
        self._sounds = SoundDecoder()
        self._turn = asyncio.Lock()
        """Held during one order, so that recordings take turns segment by segment."""
        self._places = asyncio.Semaphore(_AT_A_TIME)
        self._numbers = count(1)
        self._num_open = self._num_segments = self._num_crashes = 0
        self._heard_s = self._compute_s = 0.0
        self.is_busy = False
        """The process is working on an order."""

    @property
    def pid(self) -> int | None:
        """Id of the process; None = no process is running."""
        return self._child.pid

    @property
    def num_restarts(self) -> int:
        return self._child.num_restarts

    def load(self) -> TranscriberLoad:
        """Current load and totals of the transcriber, for metrics."""
        return TranscriberLoad(
            num_open=self._num_open,
            num_segments=self._num_segments,
            heard_s=self._heard_s,
            compute_s=self._compute_s,
            num_crashes=self._num_crashes,
        )

    async def start(self) -> SpeechInfo:
        """Starts the process if none is running, and returns the properties of the model after it is loaded.

        Raises:
            ModelUnsupported: the model cannot be used.
            BackendError: the process cannot be started, or ends before it is ready.
        """
        described = await self._child.start()
        assert isinstance(described, Described)
        return described.info

    async def transcribe(self, recording: Media, wish: Wish) -> AsyncGenerator[Heard | Segment, None]:
        """Transcribes a recording: yields one `Heard`, then the segments in order.

        Closing the generator stops the transcription.

        Raises:
            InvalidInput: the file cannot be decoded, or the model does not support the parameters in `wish`.
            MediaCrashed: the recording crashed the process twice.
            BackendError: the process cannot be started.
            Timeout: the file, or a segment of it, takes too long.
        """
        self._num_open += 1
        try:
            async with self._places:
                info = await self.start()
                _check(wish, info)
                samples = await self._sounds.samples(recording, info.sample_rate)
                job = _Job(next(self._numbers), samples, wish)
                try:
                    language = await self._begun(job)
                    yield Heard(language, len(samples) / BYTES_OF_SAMPLE / info.sample_rate)
                    while (segment := await self._next(job)) is not None:
                        yield segment
                finally:
                    self._child.tell(Drop(job.number))
        finally:
            self._num_open -= 1

    async def close(self) -> None:
        """Ends the process. Calling it twice is allowed."""
        await self._child.close()

    async def _begun(self, job: _Job) -> str:
        """Sends the process a recording, or the rest of it after a restart, and returns the language."""
        while True:
            async with self._turn:
                info = await self.start()
                first = int(job.heard_s * info.sample_rate) * BYTES_OF_SAMPLE
                order = Begin(job.number, job.samples[first:], job.wish)
                incarnation = self._child.num_starts
                reply = await self._answered(order, job)
            if isinstance(reply, Begun):
                job.wish = replace(job.wish, language=reply.language)
                job.incarnation, job.offset_s = incarnation, job.heard_s
                return reply.language

    async def _next(self, job: _Job) -> Segment | None:
        while True:
            if not self._has(job):
                await self._begun(job)
            async with self._turn:
                if not self._has(job):
                    continue
                reply = await self._answered(Continue(job.number), job)
            if isinstance(reply, Next):
                break
        if reply.segment is None:
            return None
        segment = _moved(reply.segment, job.offset_s, job.num_segments)
        self._num_segments += 1
        self._heard_s += max(0.0, segment.end - job.heard_s)
        job.num_segments, job.heard_s = job.num_segments + 1, max(job.heard_s, segment.end)
        return segment

    def _has(self, job: _Job) -> bool:
        """Whether the current process has the recording."""
        return self._child.pid is not None and job.incarnation == self._child.num_starts

    async def _answered(self, order: Order, job: _Job) -> Reply | None:
        """The reply to an order; None = the process ended, so the recording must be sent to a new process."""
        self.is_busy = True
        begun_s = time.monotonic()
        try:
            reply = await self._child.send(order)
        except ChildDied as error:
            job.incarnation = 0
            job.num_crashes += error.is_crash
            self._num_crashes += error.is_crash
            if job.num_crashes >= _MAX_CRASHES:
                message = "a recording ends the process that transcribes it"
                raise MediaCrashed(message, parameter="file") from error
            return None
        finally:
            self.is_busy = False
            self._compute_s += time.monotonic() - begun_s
        if isinstance(reply, Refused):
            raise InvalidInput(f"a recording is refused: {reply.message}", parameter="file")
        return reply


def _check(wish: Wish, info: SpeechInfo) -> None:
    if wish.language and wish.language not in info.languages:
        message = f"`language` must be one of {', '.join(info.languages)}, not {wish.language[:40]!r}"
        raise InvalidInput(message, parameter="language")
    if wish.task == "translate" and not info.can_translate:
        raise InvalidInput("this Whisper model supports only English, and cannot translate", parameter="model")


def _moved(segment: Segment, by_s: float, number: int) -> Segment:
    """The segment with its number and its times in the whole recording, from times relative to `by_s`."""
    words = segment.words and [replace(w, start=w.start + by_s, end=w.end + by_s) for w in segment.words]
    return replace(
        segment,
        id=number,
        seek=segment.seek + round(100 * by_s),
        start=segment.start + by_s,
        end=segment.end + by_s,
        words=words,
    )
