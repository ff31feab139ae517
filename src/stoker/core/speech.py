"""What is wanted of a recording that is written down, and what is found in it. It computes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Task: TypeAlias = Literal["transcribe", "translate"]


@dataclass(frozen=True, slots=True)
class SpeechInfo:
    """What a model that writes down speech says about itself."""

    languages: list[str]
    """Codes of the languages that the model knows, such as `en`."""
    sample_rate: int
    """Samples per second of what the model hears."""
    can_translate: bool
    """The model also writes in English what is said in another language."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What is wanted of a recording."""

    task: Task = "transcribe"
    """`translate`: the text is English, whatever is spoken."""
    language: str = ""
    """Code of the language that is spoken; empty = the model finds out."""
    prompt: str = ""
    """Text that might precede the recording: it shows names and the style."""
    keywords: str = ""
    """Names and terms that are likely to be said."""
    temperature: float = 0.0
    """0: the likeliest text, and higher temperatures only where that repeats itself or is unlikely."""
    has_words: bool = False
    """Segments say when each of their words is spoken."""
    skips_silence: bool = False
    """Parts without speech are left out before the model hears them."""


@dataclass(frozen=True, slots=True)
class Word:
    """One word, with the space before it. Times are in seconds from the beginning of the recording."""

    start: float
    end: float
    word: str
    probability: float


@dataclass(frozen=True, slots=True)
class Segment:
    """What is said in a few seconds. Times are in seconds from the beginning of the recording."""

    id: int
    """Number of the segment, from 0."""
    seek: int
    """Where the window of the segment begins, in hundredths of a second."""
    start: float
    end: float
    text: str
    """With the space before its first word."""
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    words: list[Word] | None = None
    """None = they were not asked for."""
