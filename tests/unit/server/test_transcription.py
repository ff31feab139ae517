"""OpenAI's endpoints that turn speech into text: their forms, formats and events, with a model that plays a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import httpx
import msgspec
import pytest

from stoker.core.media import Media
from stoker.core.speech import Segment, Wish, Word
from stoker.errors import BackendError
from stoker.media.transcriber import Heard
from tests.sound_files import wav
from tests.unit.server.fake_runtime import CARD, FakeRuntime, ask, events, make_app

SOUND = wav(0.2)


def segment(number: int, text: str) -> Segment:
    words = [Word(number, number + 0.5, text, 0.9)]
    return Segment(number, 100 * number, number, number + 1, text, [7], 0.0, -0.2, 1.1, 0.05, words)


class SpeechRuntime(FakeRuntime):
    """Hears the same in every recording, and keeps what was wished."""

    def __init__(self, *found: Heard | Segment | Exception) -> None:
        super().__init__()
        self.found = found or (Heard("de", 2.5), segment(0, " Guten"), segment(1, " Tag."))
        self.wishes: list[Wish] = []
        self.num_closed = 0

    async def transcribe(self, recording: Media, wish: Wish) -> AsyncGenerator[Heard | Segment, None]:
        assert (recording.kind, recording.data) == ("audio", SOUND)
        self.wishes.append(wish)
        try:
            for each in self.found:
                await asyncio.sleep(0)
                if isinstance(each, Exception):
                    raise each
                yield each
        finally:
            self.num_closed += 1


def post(
    runtime: FakeRuntime, fields: dict[str, Any], path: str = "transcriptions", file: bytes | None = SOUND, **more: Any
) -> httpx.Response:
    files: Any = {} if file is None else {"file": ("a.wav", file)}
    form = {"model": (None, "m"), **{name: (None, value) for name, value in fields.items()}, **files}
    return ask(make_app(runtime, **more), "POST", f"/v1/audio/{path}", files=form)


@pytest.mark.parametrize(
    ("format", "expected"),
    [
        ("text", "Guten Tag.\n"),
        ("srt", "1\n00:00:00,000 --> 00:00:01,000\nGuten\n\n2\n00:00:01,000 --> 00:00:02,000\nTag.\n"),
        ("vtt", "WEBVTT\n\n00:00:00.000 --> 00:00:01.000\nGuten\n\n00:00:01.000 --> 00:00:02.000\nTag.\n"),
    ],
)
def test_plain_formats(format: str, expected: str):
    reply = post(SpeechRuntime(), {"response_format": format})
    assert (reply.status_code, reply.text) == (200, expected)
    assert not reply.headers["content-type"].startswith("application/json")


def test_json_has_the_text_and_what_it_cost():
    reply = post(SpeechRuntime(), {})
    assert reply.json() == {"text": "Guten Tag.", "usage": {"type": "duration", "seconds": 2.5}}


@pytest.mark.parametrize(
    ("kinds", "keys"),
    [
        ((), {"segments"}),
        (("segment",), {"segments"}),
        (("word",), {"words"}),
        (("word", "segment"), {"words", "segments"}),
    ],
)
def test_verbose_json_has_the_times_that_were_asked_for(kinds: Sequence[str], keys: set[str]):
    runtime = SpeechRuntime()
    parts = [("model", "m"), ("response_format", "verbose_json"), *[("timestamp_granularities[]", k) for k in kinds]]
    form: Any = [*[(name, (None, value)) for name, value in parts], ("file", ("a.wav", SOUND))]
    reply = ask(make_app(runtime), "POST", "/v1/audio/transcriptions", files=form).json()
    assert reply.keys() - {"task", "language", "duration", "text", "usage"} == keys
    assert (reply["task"], reply["language"], reply["duration"]) == ("transcribe", "german", 2.5)
    assert runtime.wishes[0].has_words == ("word" in kinds)
    if "words" in keys:
        assert reply["words"][1] == {"word": "Tag.", "start": 1.0, "end": 1.5}
    if "segments" in keys:
        assert reply["segments"][1]["text"] == " Tag."
        assert "words" not in reply["segments"][1]


def test_every_field_reaches_the_model():
    runtime = SpeechRuntime()
    fields = {"language": "DE", "prompt": "Hallo", "temperature": "0.5", "chunking_strategy": "auto"}
    assert post(runtime, {**fields, "keywords[]": "Stoker"}).status_code == 200
    assert post(runtime, {"chunking_strategy[type]": "server_vad", "temperature": ""}).status_code == 200
    assert post(runtime, {"prompt": "Hi"}, "translations").json()["text"] == "Guten Tag."
    wish = Wish(language="de", prompt="Hallo", keywords="Stoker", temperature=0.5, skips_silence=True)
    assert runtime.wishes == [wish, Wish(skips_silence=True), Wish(task="translate", prompt="Hi")]


def test_a_stream_sends_the_text_as_it_is_found():
    runtime = SpeechRuntime()
    reply = post(runtime, {"stream": "true"})
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert [each["type"] for each in events(reply)] == [*["transcript.text.delta"] * 2, "transcript.text.done"]
    first, second, done = events(reply)
    assert first["delta"] + second["delta"] == done["text"] == "Guten Tag."
    assert done["usage"] == {"type": "duration", "seconds": 2.5}
    assert runtime.num_closed == 1


def test_an_error_in_a_stream_is_its_last_event_and_before_it_a_status():
    late = SpeechRuntime(Heard("de", 1.0), segment(0, " Guten"), BackendError("it broke"))
    assert events(post(late, {"stream": "true"}))[-1]["error"]["message"] == "it broke"
    early = post(SpeechRuntime(BackendError("it broke")), {"stream": "true"})
    assert (early.status_code, early.json()["error"]["message"]) == (500, "it broke")
    assert post(late, {}).status_code == 500
    assert late.num_closed == 2


@pytest.mark.parametrize(
    ("fields", "parameter"),
    [
        ({"response_format": "diarized_json"}, "response_format"),
        ({"temperature": "2"}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"stream": "maybe"}, "stream"),
        ({"stream": "true", "response_format": "srt"}, "response_format"),
        ({"timestamp_granularities[]": "word"}, "timestamp_granularities"),
        ({"timestamp_granularities[]": "letter", "response_format": "verbose_json"}, "timestamp_granularities[0]"),
        ({"include[]": "logprobs"}, "include"),
        ({"known_speaker_names[]": "Ann"}, "known_speaker_names"),
        ({"chunking_strategy": "hourly"}, "chunking_strategy"),
        ({"prompt": "x" * 5000}, "prompt"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(fields: dict[str, str], parameter: str):
    reply = post(SpeechRuntime(), fields)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, parameter)


def test_forms_without_a_recording_are_refused():
    assert "no file" in post(SpeechRuntime(), {}, file=None).text
    assert "WAV, MP3" in post(SpeechRuntime(), {}, file=b"%PDF-1.7").text
    assert post(SpeechRuntime(), {}, max_body_bytes=1000).status_code == 413
    reply = ask(make_app(SpeechRuntime()), "POST", "/v1/audio/transcriptions", json={"model": "m"})
    assert (reply.status_code, "multipart/form-data" in reply.text) == (400, True)
    body = b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\nRIFF'
    headers = {"content-type": "multipart/form-data; boundary=b"}
    reply = ask(make_app(SpeechRuntime()), "POST", "/v1/audio/transcriptions", content=body, headers=headers)
    assert (reply.status_code, "is incomplete" in reply.text) == (400, True)


def test_a_model_that_hears_nothing_is_told_what_to_serve():
    reply = post(FakeRuntime(), {})
    assert (reply.status_code, "stoker serve FOLDER" in reply.text) == (400, True)


class HearingRuntime(FakeRuntime):
    """A chat model with ears."""

    @property
    def card(self) -> Any:
        return msgspec.structs.replace(CARD, media=["audio"], chat_template="x")


def test_a_chat_model_that_hears_is_asked_about_the_recording():
    runtime = HearingRuntime()
    reply = post(runtime, {"language": "de", "keywords[]": "Stoker"})
    assert reply.json()["text"] == "Hello!"
    usage = reply.json()["usage"]
    assert (usage["type"], usage["total_tokens"]) == ("tokens", usage["input_tokens"] + usage["output_tokens"])
    (submit,) = runtime.submits
    assert [file.data for file in submit.media] == [SOUND]
    assert all(word in str(submit.prompt) for word in ("`de`", "Stoker", submit.media[0].marker))
    assert submit.sampling.temperature == 0
    assert post(runtime, {"response_format": "text"}, "translations").text == "Hello!\n"
    assert "English" in str(runtime.submits[-1].prompt)


def test_a_chat_model_that_hears_streams_and_knows_no_times():
    runtime = HearingRuntime()
    *deltas, done = events(post(runtime, {"stream": "true"}))
    assert "".join(each["delta"] for each in deltas) == done["text"] == "Hello!"
    for format in ("srt", "vtt", "verbose_json"):
        reply = post(runtime, {"response_format": format})
        assert (reply.status_code, "only Whisper models" in reply.text) == (400, True)


def test_a_transcript_that_takes_too_long_ends_with_a_timeout():
    class Endless(SpeechRuntime):
        async def transcribe(self, recording: Media, wish: Wish) -> AsyncGenerator[Heard | Segment, None]:
            yield Heard("de", 1.0)
            await asyncio.Event().wait()

    reply = post(Endless(), {}, request_timeout_s=0.01)
    assert reply.json()["error"]["code"] == "timeout"
