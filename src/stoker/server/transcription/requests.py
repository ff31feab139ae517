"""Converts forms to requests to a Whisper model, or to a chat model with audio input. Uses no connection."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from stoker.chat.planning import Conversation, Thinking, planned
from stoker.core.media import Media
from stoker.core.params import SamplingParams
from stoker.core.speech import Task, Wish
from stoker.errors import InvalidInput, UnsupportedParameter
from stoker.media.transcripts import SUBTITLE_FORMATS
from stoker.runtime.base import Runtime
from stoker.server.config import ServerConfig
from stoker.server.fields import FieldTable, convert_fields
from stoker.server.generation import GenerationRequest
from stoker.server.request.fields import GenerationFields
from stoker.server.request.request import Caller, generation_request
from stoker.server.transcription.types import TranscriptionForm, TranslationForm
from stoker.server.transport.form import Form
from stoker.text.media_parts import MediaPart, media_from_bytes
from stoker.text.messages import Message, TextPart

_INSIDE = re.compile(r"([^\[\]]+)\[([^\[\]]*)\]")
_LISTS = frozenset(
    {
        "include",
        "keywords",
        "known_speaker_names",
        "known_speaker_references",
        "languages",
        "timestamp_granularities",
    }
)
_FLAGS: Mapping[str, bool] = {"true": True, "1": True, "false": False, "0": False}
_TIMED = ("verbose_json", *SUBTITLE_FORMATS)


@dataclass(frozen=True, slots=True)
class Asked:
    """A checked request for a transcript."""

    task: Task
    form: TranscriptionForm
    recording: Media

    @property
    def wish(self) -> Wish:
        """The request as the settings of a Whisper model."""
        form = self.form
        return Wish(
            task=self.task,
            language=(form.language or "").lower(),
            prompt=form.prompt or "",
            keywords=", ".join(form.keywords),
            temperature=form.temperature or 0.0,
            has_words="word" in form.timestamp_granularities,
            skips_silence=_skips_silence(form.chunking_strategy),
        )


def asked_by(form: Form, task: Task, kind: type[TranslationForm], fields: FieldTable, max_bytes: int) -> Asked:
    """Checks a form and returns the request.

    Args:
        form: the received form.
        task: the task of the endpoint.
        kind: the type of the form.
        fields: policies of the form's fields.
        max_bytes: maximum size of the file, in bytes.

    Raises:
        InvalidInput: a field is malformed, or the format of the file is not supported.
        UnsupportedParameter: a field asks for a feature that is not supported.
    """
    given = convert_fields({**_values(form), "file": form.filename}, fields, kind)
    wire = TranscriptionForm(**msgspec.structs.asdict(given))
    if wire.temperature is not None and not 0 <= wire.temperature <= 1:
        message = f"`temperature` must be between 0 and 1, not {wire.temperature:g}"
        raise InvalidInput(message, parameter="temperature")
    if wire.timestamp_granularities and wire.response_format != "verbose_json":
        message = "`timestamp_granularities` needs `response_format` to be `verbose_json`"
        raise InvalidInput(message, parameter="timestamp_granularities")
    if wire.stream and wire.response_format not in ("json", "text"):
        message = f"a stream consists of text: `{wire.response_format}` is not available with `stream`"
        raise UnsupportedParameter(message, parameter="response_format")
    return Asked(task, wire, media_from_bytes(bytes(form.data), "audio", "file", max_bytes=max_bytes))


def hearing_request(asked: Asked, runtime: Runtime, caller: Caller, config: ServerConfig) -> GenerationRequest:
    """The generation of a transcript by a chat model with audio input: one question about the recording.

    Raises:
        UnsupportedParameter: the format needs timestamps, which such a model does not give.
        InvalidInput: the chat template refuses the question.
    """
    form = asked.form
    if form.response_format in _TIMED:
        message = f"`{form.response_format}` needs timestamps, which only Whisper models give: use `json` or `text`"
        raise UnsupportedParameter(message, parameter="response_format")
    content = (MediaPart(asked.recording), TextPart(_question(asked.wish)))
    thinking = Thinking(is_on=False, is_preference=True)
    plan = planned(Conversation(messages=[Message(role="user", content=content)], thinking=thinking), runtime)
    sampling = SamplingParams(temperature=form.temperature or 0.0)
    return generation_request(GenerationFields(model=form.model), [plan.prompt], sampling, caller, config, plan=plan)


def _question(wish: Wish) -> str:
    if wish.task == "translate":
        asked = "Translate what is said in this recording into English. Answer with the translation only."
    else:
        language = f", which is spoken in the language `{wish.language}`" if wish.language else ""
        asked = f"Write down what is said in this recording{language}, word by word. Answer with these words only."
    if wish.keywords:
        asked += f" It may mention: {wish.keywords}."
    return f"{asked} The text before it is: {wish.prompt}" if wish.prompt else asked


def _skips_silence(strategy: str | dict[str, Any] | None) -> bool:
    kind = strategy.get("type") if isinstance(strategy, dict) else strategy
    if kind not in (None, "", "auto", "server_vad"):
        message = f"`chunking_strategy` must be `auto` or of the type `server_vad`, not {str(kind)[:40]!r}"
        raise InvalidInput(message, parameter="chunking_strategy")
    return bool(kind)


def _values(form: Form) -> dict[str, Any]:
    """The fields of a form as in JSON. `name[]` is an item of a list, `name[key]` a member of an object."""
    found: dict[str, Any] = {}
    for name, texts in form.texts().items():
        inside = _INSIDE.fullmatch(name)
        plain = inside[1] if inside else name
        if plain in _LISTS:
            found.setdefault(plain, []).extend(texts)
        elif inside is not None:
            found[plain] = {**_parts(found.get(plain)), inside[2]: texts[-1]}
        else:
            found[name] = _read(name, texts[-1])
    return found


def _parts(value: object) -> dict[str, object]:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def _read(name: str, text: str) -> object:
    """The value of a field: a number or a flag for fields of these types; None for an empty text."""
    if name == "temperature" and text:
        try:
            return float(text)
        except ValueError:
            raise InvalidInput(f"`temperature` must be a number, not {text[:40]!r}", parameter=name) from None
    if name == "stream" and text:
        if text.lower() not in _FLAGS:
            raise InvalidInput(f"`stream` must be true or false, not {text[:40]!r}", parameter=name)
        return _FLAGS[text.lower()]
    return text or None
