"""`WhisperRuntime`: a Whisper model as a `Runtime`. It transcribes recordings, and refuses everything else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Unpack, runtime_checkable

from stoker.core.media import Media
from stoker.core.speech import Segment, SpeechInfo, Wish
from stoker.engine.cards import ModelCard, TranscriptionCard
from stoker.engine.config import AdapterSpec, EngineConfig
from stoker.engine.door import Door
from stoker.engine.health import Health
from stoker.engine.protocol import Accepted, Output, Submit
from stoker.engine.question_messages import A, AdapterList, Answer, ChangeAdapters, Question, as_answer_to
from stoker.errors import ModelNotLoaded, StokerError, UnsupportedParameter
from stoker.media.transcriber import Heard, Transcriber
from stoker.text.messages import Message, RenderOptions

if TYPE_CHECKING:
    from stoker.text.chat_formats.probe import ChatFormat

_MAX_TEXT_TOKENS = 448
"""Maximum number of tokens that the decoder of a Whisper model writes for 30 seconds of speech."""


@runtime_checkable
class Transcribes(Protocol):
    """A runtime whose model transcribes speech."""

    def transcribe(self, recording: Media, wish: Wish) -> AsyncGenerator[Heard | Segment, None]:
        """See `Transcriber.transcribe`."""
        ...


class WhisperRuntime:
    """The `Runtime` of one Whisper model. Owns its transcriber. Belongs to one event loop.

    Args:
        config: the model, whose folder is on this disk.
        transcriber: starts and asks the process that computes.
    """

    def __init__(self, config: EngineConfig, transcriber: Transcriber) -> None:
        self._config = config
        self._transcriber = transcriber
        self._door = Door(capacity=config.parallel + config.max_queue, parallel=1)
        self._num_inside = 0
        self._card: ModelCard | None = None
        self._load_error: StokerError | None = None
        self._is_closed = False

    @property
    def card(self) -> ModelCard:
        """See `Runtime`."""
        if self._card is None:
            raise ModelNotLoaded("the model is still loading")
        return self._card

    async def start(self) -> ModelCard:
        """See `Runtime`."""
        if self._card is None:
            try:
                info = await self._transcriber.start()
            except StokerError as error:
                self._load_error = error
                raise
            self._card = _card(self._config, info)
        return self._card

    def health(self) -> Health:
        """See `Runtime`."""
        is_ready = self._card is not None and not self._is_closed
        state = "failed" if self._load_error is not None else "ready" if is_ready else "starting"
        return Health(
            is_ready=is_ready,
            state="closed" if self._is_closed else state,
            num_restarts=self._transcriber.num_restarts,
            last_error=None if self._load_error is None else self._load_error.message,
            transcriber=self._transcriber.load(),
        )

    async def transcribe(self, recording: Media, wish: Wish) -> AsyncGenerator[Heard | Segment, None]:
        """See `Transcriber.transcribe`.

        Raises:
            Overloaded: too many recordings wait already.
            ModelNotLoaded: the model was closed.
        """
        if self._is_closed:
            raise ModelNotLoaded("the model was closed")
        with self._inside():
            async with aclosing(self._transcriber.transcribe(recording, wish)) as found:
                async for each in found:
                    yield each

    async def generate(self, submit: Submit) -> AsyncGenerator[Accepted | Output, None]:
        """Raises UnsupportedParameter: a Whisper model generates no text from a prompt."""
        raise _refusal()
        yield Accepted(submit.request_id, 0)

    @property
    def chat_format(self) -> ChatFormat:
        """Raises UnsupportedParameter, see `generate`."""
        raise _refusal()

    def render_chat(self, messages: Sequence[Message], **options: Unpack[RenderOptions]) -> str:
        """Raises UnsupportedParameter, see `generate`."""
        raise _refusal()

    async def ask(self, question: Question[A]) -> A:
        """Answers only a `ChangeAdapters` without changes; raises UnsupportedParameter for every other question."""
        return as_answer_to(question, _answer(question))

    def begin_with(self, adapters: Sequence[AdapterSpec]) -> None:
        """See `Runtime`."""
        assert not adapters, "it never had any"

    async def close(self) -> None:
        """See `Runtime`."""
        self._is_closed = True
        await self._transcriber.close()

    @contextmanager
    def _inside(self) -> Generator[None]:
        self._door.check(self._num_inside)
        self._num_inside += 1
        try:
            yield
        finally:
            self._num_inside -= 1
            self._door.note_departure(asyncio.get_running_loop().time())


def _answer(question: Question[Any]) -> Answer:
    if isinstance(question, ChangeAdapters) and question.is_empty:
        return AdapterList(question.question_id, [])
    raise _refusal()


def _refusal() -> UnsupportedParameter:
    message = "this model only transcribes recordings: use /v1/audio/transcriptions"
    return UnsupportedParameter(message, parameter="model")


def _card(config: EngineConfig, info: SpeechInfo) -> ModelCard:
    folder = Path(config.model_path)
    return ModelCard(
        name=config.name or config.model,
        backend="whisper",
        architecture="whisper",
        path=str(folder),
        vocab_size=0,
        trained_context=_MAX_TEXT_TOKENS,
        context_size=_MAX_TEXT_TOKENS,
        kv_tokens=0,
        parallel=config.parallel,
        max_queue=config.max_queue,
        chat_template=None,
        bos_token="",
        eos_token="",
        num_parameters=0,
        size_bytes=sum(file.stat().st_size for file in folder.iterdir() if file.is_file()),
        created=int(time.time()),
        can_generate=False,
        transcription=TranscriptionCard(info.languages, can_translate=info.can_translate),
    )
