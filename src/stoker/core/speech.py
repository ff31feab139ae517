"""Speech recognition: parameters of a transcription, and its result. It computes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Task: TypeAlias = Literal["transcribe", "translate"]


@dataclass(frozen=True, slots=True)
class SpeechInfo:
    """Abilities of a model that transcribes speech."""

    languages: list[str]
    """Codes of the supported languages, such as `en`."""
    sample_rate: int
    """Sample rate of recordings for the model, in Hz."""
    can_translate: bool
    """The model can also translate speech in other languages to English text."""


@dataclass(frozen=True, slots=True)
class Wish:
    """The parameters of one transcription."""

    task: Task = "transcribe"
    """`translate`: the text is in English, whatever the spoken language is."""
    language: str = ""
    """Code of the spoken language; empty = the model detects it."""
    prompt: str = ""
    """Text that might precede the recording, as an example of the spelling of names and of the style."""
    keywords: str = ""
    """Names and terms that are likely to be spoken (hotwords)."""
    temperature: float = 0.0
    """Sampling temperature; 0 = the most likely text, or higher temperatures where that is repetitive or improbable."""
    has_words: bool = False
    """Segments have timestamps of each word."""
    skips_silence: bool = False
    """Parts without speech are removed before the model runs (voice activity detection)."""


@dataclass(frozen=True, slots=True)
class Word:
    """One word, with its leading space. Times are in seconds from the beginning of the recording."""

    start: float
    end: float
    word: str
    probability: float


@dataclass(frozen=True, slots=True)
class Segment:
    """The transcript of a few seconds. Times are in seconds from the beginning of the recording."""

    id: int
    """Index of the segment, from 0."""
    seek: int
    """Start of the model's window with the segment, in hundredths of a second."""
    start: float
    end: float
    text: str
    """The text, with the space before its first word."""
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    words: list[Word] | None = None
    """The words with timestamps; None = they were not requested (`Wish.has_words`)."""
