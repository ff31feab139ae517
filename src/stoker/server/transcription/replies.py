"""Converts transcripts to OpenAI's replies and events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import UNSET
from starlette.responses import PlainTextResponse, Response
from starlette.types import Scope

from stoker.engine.protocol import Usage
from stoker.errors import StokerError
from stoker.media.transcripts import Transcript
from stoker.server.answer import Delta, Writer
from stoker.server.errors import error_event, json_response
from stoker.server.generation import Generation
from stoker.server.transcription.requests import Asked
from stoker.server.transcription.types import (
    AnyUsage,
    DurationUsage,
    InputTokenDetails,
    TextDelta,
    TextDone,
    TimedSegment,
    TimedWord,
    TokenUsage,
    Transcription,
    VerboseTranscription,
)

_NAMES = """
af afrikaans, am amharic, ar arabic, as assamese, az azerbaijani, ba bashkir, be belarusian, bg bulgarian, bn bengali,
bo tibetan, br breton, bs bosnian, ca catalan, cs czech, cy welsh, da danish, de german, el greek, en english,
es spanish, et estonian, eu basque, fa persian, fi finnish, fo faroese, fr french, gl galician, gu gujarati, ha hausa,
haw hawaiian, he hebrew, hi hindi, hr croatian, ht haitian creole, hu hungarian, hy armenian, id indonesian,
is icelandic, it italian, ja japanese, jw javanese, ka georgian, kk kazakh, km khmer, kn kannada, ko korean, la latin,
lb luxembourgish, ln lingala, lo lao, lt lithuanian, lv latvian, mg malagasy, mi maori, mk macedonian, ml malayalam,
mn mongolian, mr marathi, ms malay, mt maltese, my myanmar, ne nepali, nl dutch, nn nynorsk, no norwegian, oc occitan,
pa punjabi, pl polish, ps pashto, pt portuguese, ro romanian, ru russian, sa sanskrit, sd sindhi, si sinhala, sk slovak,
sl slovenian, sn shona, so somali, sq albanian, sr serbian, su sundanese, sv swedish, sw swahili, ta tamil, te telugu,
tg tajik, th thai, tk turkmen, tl tagalog, tr turkish, tt tatar, uk ukrainian, ur urdu, uz uzbek, vi vietnamese,
yi yiddish, yo yoruba, yue cantonese, zh chinese
"""

LANGUAGES: Mapping[str, str] = {
    code: name for code, _, name in (pair.strip().partition(" ") for pair in _NAMES.split(","))
}
"""Names of the languages that Whisper models support, by language code."""


def transcript_response(asked: Asked, transcript: Transcript) -> Response:
    """The reply without streaming for a transcript of a Whisper model, in the requested format."""
    match asked.form.response_format:
        case "json":
            return text_response(asked, transcript.text, DurationUsage(_seconds(transcript)))
        case "verbose_json":
            return json_response(_verbose(asked, transcript))
        case "text":
            return PlainTextResponse(transcript.text + "\n")
        case "srt" | "vtt" as format:
            media_type = "text/vtt" if format == "vtt" else "application/x-subrip"
            return PlainTextResponse(transcript.subtitles(format), media_type=media_type)


def text_response(asked: Asked, text: str, usage: AnyUsage) -> Response:
    """The reply with the text alone, in the format `json` or `text`."""
    if asked.form.response_format == "text":
        return PlainTextResponse(text + "\n")
    return json_response(Transcription(text=text, usage=usage))


def delta_event(text: str) -> bytes:
    """The event with a further piece of text."""
    return _event(TextDelta(text))


def done_event(text: str, usage: AnyUsage) -> bytes:
    """The last event, with the whole text."""
    return _event(TextDone(text=text, usage=usage))


class HearingWriter(Writer):
    """Writes the transcript of a chat model with audio input.

    Args:
        asked: the request.
        generation: the generation of the transcript.
    """

    def __init__(self, asked: Asked, generation: Generation) -> None:
        self._asked = asked
        self._generation = generation
        self._text = ""

    def push(self, delta: Delta) -> bytes:
        """See `Writer`."""
        text = delta.text if self._text else delta.text.lstrip()
        self._text += text
        return delta_event(text) if text else b""

    def end(self) -> bytes:
        """See `Writer`."""
        return done_event(self._text.strip(), _token_usage(self._generation.usage))

    def fail(self, error: StokerError, scope: Scope) -> bytes:
        """See `Writer`."""
        return error_event(error, scope)

    def whole(self, answers: Sequence[Delta]) -> Response:
        """See `Writer`."""
        return text_response(self._asked, answers[0].text.strip(), _token_usage(self._generation.usage))


def _verbose(asked: Asked, transcript: Transcript) -> VerboseTranscription:
    kinds = asked.form.timestamp_granularities
    words = [TimedWord(w.word.strip(), w.start, w.end) for segment in transcript.segments for w in segment.words or ()]
    return VerboseTranscription(
        task=transcript.task,
        language=LANGUAGES.get(transcript.language, transcript.language),
        duration=transcript.duration_s,
        text=transcript.text,
        segments=UNSET if kinds == ["word"] else [TimedSegment.of(segment) for segment in transcript.segments],
        words=words if "word" in kinds else UNSET,
        usage=DurationUsage(_seconds(transcript)),
    )


def _seconds(transcript: Transcript) -> float:
    return round(transcript.duration_s, 3)


def _token_usage(usage: Usage) -> TokenUsage:
    return TokenUsage(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        input_token_details=InputTokenDetails(usage.audio_tokens, usage.prompt_tokens - usage.audio_tokens),
    )


def _event(event: msgspec.Struct) -> bytes:
    return b"data: " + msgspec.json.encode(event) + b"\n\n"
