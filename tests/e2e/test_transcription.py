"""A real Whisper model writes down what espeak-ng says: for OpenAI's client, on the command line and in Python."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from stoker import Transcriber
from tests.e2e.conftest import Server, serving
from tests.waiting import BOUND_S

pytestmark = pytest.mark.slow

SAID = "Yesterday my brother bought seven green apples and a bottle of milk."
WORDS = {"yesterday", "my", "brother", "green", "apples", "and", "a", "bottle", "of", "milk"}
GERMAN = "Guten Morgen, ich möchte bitte einen Kaffee und ein Stück Kuchen."


def spoken(text: str, path: Path, voice: str = "en-us") -> Path:
    subprocess.run(["espeak-ng", "-v", voice, "-s", "140", "-w", str(path), text], check=True, timeout=60)
    return path


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def is_heard(text: str) -> bool:
    """Nearly all words are there: which ones a small model mistakes depends on how the CPU rounds."""
    return len(words(text) & WORDS) >= len(WORDS) - 2


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("espeak-ng") is None:
        pytest.skip("espeak-ng is not installed: apt-get install espeak-ng")
    return spoken(SAID, tmp_path_factory.mktemp("speech") / "said.wav")


@pytest.fixture(scope="module")
def server(whisper_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("whisper") / "log"
    options = ("--ctx-size", "512", "--alias", f"whisper-1={whisper_folder.name}")
    with serving("smollm2", str(whisper_folder), *options, log=log) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=280)


def test_the_words_that_were_spoken_come_back(client: openai.OpenAI, speech: Path):
    with speech.open("rb") as file:
        reply: Any = client.audio.transcriptions.create(file=file, model="whisper-1", language="en")
    assert is_heard(reply.text), reply.text
    assert reply.usage.type == "duration"


def test_times_of_segments_and_words_lie_in_the_recording(client: openai.OpenAI, speech: Path):
    with speech.open("rb") as file:
        reply = client.audio.transcriptions.create(
            file=file,
            model="whisper-1",
            response_format="verbose_json",
            timestamp_granularities=["word", "segment"],
        )
    assert reply.language == "english"
    assert reply.words is not None
    assert reply.segments is not None
    starts = [word.start for word in reply.words]
    assert starts == sorted(starts)
    assert 0 <= starts[0] < reply.words[-1].end <= float(reply.duration) + 0.5
    assert is_heard(" ".join(word.word for word in reply.words))
    with speech.open("rb") as file:
        subtitles: Any = client.audio.transcriptions.create(file=file, model="whisper-1", response_format="srt")
    assert re.match(r"1\n00:00:0\d,\d{3} --> 00:00:0\d,\d{3}\n", subtitles)


def test_a_stream_adds_up_to_the_text(client: openai.OpenAI, speech: Path):
    with speech.open("rb") as file:
        stream = client.audio.transcriptions.create(file=file, model="whisper-1", language="en", stream=True)
        *deltas, done = list(stream)
    assert "".join(getattr(event, "delta", "") for event in deltas).strip() == getattr(done, "text", "")
    assert is_heard(getattr(done, "text", ""))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the client has one for translations
def test_what_is_spoken_in_german_is_found_out_and_translated(client: openai.OpenAI, speech: Path, tmp_path: Path):
    german = spoken(GERMAN, tmp_path / "german.wav", "de")
    with german.open("rb") as file:
        reply = client.audio.transcriptions.create(file=file, model="whisper-1", response_format="verbose_json")
    assert reply.language == "german"
    assert len(words(reply.text) & {"guten", "morgen", "kaffee", "möchte"}) >= 3, reply.text
    with german.open("rb") as file:
        translated = client.audio.translations.create(file=file, model="whisper-1")  # pyright: ignore[reportDeprecated]
    assert "coffee" in words(translated.text), translated.text


def test_the_chat_model_beside_it_answers_and_the_whisper_model_says_what_it_is_for(
    server: Server, client: openai.OpenAI
):
    messages: Any = [{"role": "user", "content": "Hi"}]
    assert client.chat.completions.create(model="smollm2", messages=messages, max_tokens=4).choices[0].message.content
    with pytest.raises(openai.BadRequestError, match="audio/transcriptions"):
        client.chat.completions.create(model="whisper-1", messages=messages)
    models = httpx.get(f"{server.url}/v1/models", trust_env=False, timeout=BOUND_S).json()["data"]
    listed = {model["id"]: model["capabilities"] for model in models}
    assert listed["whisper-base"] == ["transcription"]


def test_the_command_line_writes_text_and_subtitles(whisper_folder: Path, speech: Path, tmp_path: Path):
    line = [sys.executable, "-m", "stoker", "transcribe", str(whisper_folder), str(speech), "--language", "en"]
    said = subprocess.run(line, capture_output=True, text=True, check=True, timeout=280).stdout
    assert is_heard(said), said
    subprocess.run([*line, "-f", "json", "--words", "-o", str(tmp_path)], check=True, timeout=280, capture_output=True)
    written = json.loads((tmp_path / "said.json").read_text())
    assert is_heard(written["text"])
    assert written["segments"][0]["words"]


def test_the_library_transcribes_bytes(whisper_folder: Path, speech: Path):
    with Transcriber(whisper_folder) as transcriber:
        found = transcriber.transcribe(speech.read_bytes(), language="en")
        assert is_heard(found.text)
        assert found.subtitles("vtt").startswith("WEBVTT\n\n00:00:0")
