"""The forms, replies and events of OpenAI's endpoints for transcription and translation of speech."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from stoker.core.speech import Segment
from stoker.server.fields import FieldTable, Ignored, Refused, honoured

ReplyFormat: TypeAlias = Literal["json", "text", "srt", "verbose_json", "vtt"]
Granularity: TypeAlias = Literal["word", "segment"]


class TranslationForm(msgspec.Struct, frozen=True, kw_only=True):
    """The form of `POST /v1/audio/translations`."""

    file: str
    """The recording, as a file of the form."""
    model: str | None = None
    prompt: str | None = None
    """Text that might precede the recording; it shows the model names and the style."""
    response_format: ReplyFormat = "json"
    temperature: float | None = None
    """Temperature from 0 to 1; 0 = the likeliest text."""
    stream: bool = False
    """True: text is sent as it is transcribed (for translations an addition of this server)."""
    chunking_strategy: str | dict[str, Any] | None = None
    """With `auto` or `server_vad`, a Whisper model skips parts without speech."""


class TranscriptionForm(TranslationForm, frozen=True, kw_only=True):
    """The form of `POST /v1/audio/transcriptions`."""

    language: str | None = None
    """Code of the spoken language, such as `en`; without it, the model detects the language."""
    keywords: list[str] = []
    """Names and terms that are likely to be said."""
    timestamp_granularities: list[Granularity] = []
    """Units with timestamps, for the format `verbose_json`: `segment`, `word`, or both."""


TRANSLATION_FIELDS: FieldTable = honoured(TranslationForm, {"language": Ignored("the translation is English")})
TRANSCRIPTION_FIELDS: FieldTable = honoured(
    TranscriptionForm,
    {
        "include": Refused(
            "log-probabilities of single tokens are not kept; `verbose_json` has those of segments", ([],)
        ),
        "languages": Ignored("the model detects the language; set it with `language`"),
        "known_speaker_names": Refused("speakers are not identified", ([],)),
        "known_speaker_references": Refused("speakers are not identified", ([],)),
    },
)


class DurationUsage(msgspec.Struct, frozen=True):
    """Usage of a transcript by a Whisper model."""

    seconds: float
    type: Literal["duration"] = "duration"


class InputTokenDetails(msgspec.Struct, frozen=True):
    audio_tokens: int
    text_tokens: int


class TokenUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of a transcript by a chat model with audio input."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_token_details: InputTokenDetails
    type: Literal["tokens"] = "tokens"


AnyUsage: TypeAlias = DurationUsage | TokenUsage


class Transcription(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    usage: Any
    """`DurationUsage` for a Whisper model, `TokenUsage` for any other model."""


class TimedWord(msgspec.Struct, frozen=True):
    word: str
    start: float
    end: float


class TimedSegment(msgspec.Struct, frozen=True, kw_only=True):
    """A segment of a transcript. Times are in seconds from the beginning of the recording."""

    id: int
    seek: int
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float

    @classmethod
    def of(cls, segment: Segment) -> TimedSegment:
        """The JSON of a segment, without its words."""
        return cls(**{name: getattr(segment, name) for name in cls.__struct_fields__})


class VerboseTranscription(msgspec.Struct, frozen=True, kw_only=True):
    task: str
    language: str
    """Name of the spoken language, such as `english`."""
    duration: float
    """Length of the recording in seconds."""
    text: str
    segments: list[TimedSegment] | UnsetType = UNSET
    words: list[TimedWord] | UnsetType = UNSET
    usage: DurationUsage


class TextDelta(msgspec.Struct, frozen=True):
    """An event with text that follows the text of earlier events."""

    delta: str
    type: Literal["transcript.text.delta"] = "transcript.text.delta"


class TextDone(msgspec.Struct, frozen=True, kw_only=True):
    """The last event, with the whole text."""

    text: str
    usage: Any
    """Usage, as in `Transcription`."""
    type: Literal["transcript.text.done"] = "transcript.text.done"
