"""`Transcriber`, the Python interface of Whisper models: recordings to text and subtitles."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from stoker.core.speech import Segment, Task, Wish
from stoker.engine.config import EngineConfig
from stoker.errors import InvalidInput, ModelNotLoaded, ModelUnsupported
from stoker.loading.locating import local_model
from stoker.loading.transcribers import create_transcriber, transcribes
from stoker.media.transcriber import Heard
from stoker.media.transcripts import Transcript
from stoker.models.progress import Progress
from stoker.text.media_parts import media_from_bytes

T = TypeVar("T")

_STOP_S = 30.0
_MAX_BYTES = 1 << 30


class Transcriber:
    """A Whisper model in a separate process. It may be used from several threads. `with` ends the process.

    >>> with Transcriber("whisper-base") as transcriber:  # doctest: +SKIP
    ...     print(transcriber.transcribe("call.mp3").subtitles("srt"))

    Args:
        model: folder of a Whisper model in CTranslate2's format.
        threads: number of CPU threads; None = one for each physical core.
        progress: receives the progress of downloads.

    Raises:
        ModelError: there is no such model, or it is not a Whisper model.
        ConfigError: a library is missing.
    """

    def __init__(
        self, model: str | os.PathLike[str], *, threads: int | None = None, progress: Progress | None = None
    ) -> None:
        config = local_model(EngineConfig(model=os.fspath(model), threads=threads), progress=progress)
        if not transcribes(config):
            raise ModelUnsupported(
                f"{config.model} is not a Whisper model in CTranslate2's format, a folder with model.bin"
            )
        self._transcriber = create_transcriber(config)
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="stoker-transcriber", daemon=True)
        self._thread.start()

    def transcribe(
        self,
        audio: str | os.PathLike[str] | bytes,
        *,
        language: str = "",
        task: Task = "transcribe",
        prompt: str = "",
        keywords: str = "",
        temperature: float = 0.0,
        word_timestamps: bool = False,
        skip_silence: bool = False,
    ) -> Transcript:
        """Transcribes a recording.

        Args:
            audio: path or content of a file: WAV, MP3, FLAC, OGG, M4A or WebM, up to 30 minutes.
            language: code of the spoken language, such as `en`; empty = detect it.
            task: `translate` = translate the speech to English.
            prompt: text that could precede the recording, as a hint for names and style.
            keywords: names and terms that probably occur.
            temperature: 0 = the most likely text.
            word_timestamps: add the time of each word to the segments.
            skip_silence: skip parts without speech.

        Raises:
            InvalidInput: the file cannot be read or decoded, or the model does not know the language.
            BackendError: the model's process cannot be started.
            ModelNotLoaded: the transcriber was closed.
        """
        wish = Wish(
            task=task,
            language=language,
            prompt=prompt,
            keywords=keywords,
            temperature=temperature,
            has_words=word_timestamps,
            skips_silence=skip_silence,
        )
        return self.whole(audio, wish)

    def whole(self, audio: str | os.PathLike[str] | bytes, wish: Wish) -> Transcript:
        """Transcribes a recording with the parameters in `wish`; see `transcribe`."""
        heard, *segments = self.stream(audio, wish)
        assert isinstance(heard, Heard), "what is known of a recording comes before its segments"
        found = [segment for segment in segments if isinstance(segment, Segment)]
        return Transcript(task=wish.task, language=heard.language, duration_s=heard.duration_s, segments=found)

    def stream(self, audio: str | os.PathLike[str] | bytes, wish: Wish | None = None) -> Iterator[Heard | Segment]:
        """Yields the language and length of a recording, then each segment as soon as it is transcribed.

        Closing the iterator stops the transcription.
        """
        recording = media_from_bytes(_content(audio), "audio", "audio", max_bytes=_MAX_BYTES)
        found = self._transcriber.transcribe(recording, wish or Wish())
        try:
            while (item := self._wait(_next(found))) is not None:
                yield item
        finally:
            with suppress(ModelNotLoaded):
                self._wait(found.aclose())

    def close(self) -> None:
        """Ends the process. Calling it twice is allowed."""
        with self._lock:
            if self._is_closed:
                return
            closing = asyncio.run_coroutine_threadsafe(self._transcriber.close(), self._loop)
            self._is_closed = True
        with suppress(TimeoutError):
            closing.result(_STOP_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_S)

    def __enter__(self) -> Transcriber:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        with self._lock:
            if self._is_closed:
                work.close()
                raise ModelNotLoaded("the transcriber was closed")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result()  # bounded: every wait of the transcriber has a timeout

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.close()


async def _next(found: Any) -> Heard | Segment | None:
    return await anext(found, None)


def _content(audio: str | os.PathLike[str] | bytes) -> bytes:
    if isinstance(audio, bytes):
        return audio
    try:
        return Path(audio).expanduser().read_bytes()
    except OSError as error:
        message = f"{os.fspath(audio)} cannot be read: {error.strerror}"
        raise InvalidInput(message, parameter="audio") from error
