"""Recordings as parts of conversations, natively and through llama-server, with a small projector of random weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from stoker import LLM
from tests.e2e.conftest import Server, serving
from tests.e2e.test_llama_server_runtime import computes_here as computes_here
from tests.projector_files import base64_of, picture
from tests.sound_files import SOUND_ROWS, encoded, tone, wav, write_sound_projector
from tests.waiting import BOUND_S

pytestmark = pytest.mark.slow

pytest.importorskip("av")

ASKED: dict[str, Any] = {"model": "m", "temperature": 0, "max_tokens": 6}


@pytest.fixture(scope="module")
def projector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sound_projector(tmp_path_factory.mktemp("audio") / "mmproj.gguf", 576)


@pytest.fixture(scope="module", params=["engine", "llama-server"])
def runtime(request: pytest.FixtureRequest) -> str:
    if request.param == "llama-server":
        request.getfixturevalue("computes_here")
    return request.param


@pytest.fixture(scope="module")
def server(
    runtime: str, smollm2_path: Path, projector: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    options = ("--runtime", runtime, "--mmproj", str(projector), "--ctx-size", "1024", "--parallel", "2")
    with serving(str(smollm2_path), *options, log=tmp_path_factory.mktemp("audio") / "log") as server:
        yield server


def post(server: Server, path: str, body: object) -> httpx.Response:
    return httpx.post(server.url + path, json=body, trust_env=False, timeout=240)


def said(data: bytes) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": base64_of(data), "format": "wav"}}


def chat(server: Server, *parts: dict[str, Any]) -> Any:
    content = [*parts, {"type": "text", "text": "What is it?"}]
    body = {**ASKED, "messages": [{"role": "user", "content": content}], "logprobs": True}
    reply = post(server, "/v1/chat/completions", body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_the_sound_counts_whatever_its_format(server: Server, runtime: str):
    low, plain = chat(server, said(wav(1.0, 220))), chat(server)
    again = chat(server, said(encoded(tone(1.0, 220), "flac", "flac")))
    high = chat(server, said(wav(1.0, 3000)))
    assert low["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"] + SOUND_ROWS
    logprobs = [reply["choices"][0]["logprobs"]["content"][0]["logprob"] for reply in (low, high, plain)]
    assert len(set(logprobs)) == 3
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= SOUND_ROWS
    if runtime == "engine":  # llama-server computes the last token of a cached prompt with other roundings
        assert again["choices"][0]["message"] == low["choices"][0]["message"]
        assert low["usage"]["prompt_tokens_details"]["audio_tokens"] == SOUND_ROWS
        assert "audio_tokens" not in plain["usage"]["prompt_tokens_details"]


def test_every_dialect_gives_the_same_answer(server: Server):
    sound = wav(1.0, 220)
    expected = chat(server, said(sound))["choices"][0]["message"]["content"]
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    content: Any = [said(sound), {"type": "input_text", "text": "What is it?"}]
    response = client.responses.create(
        model="m", temperature=0, max_output_tokens=16, input=[{"role": "user", "content": content}]
    )
    assert response.output_text.startswith(expected)
    props = httpx.get(f"{server.url}/props", trust_env=False, timeout=BOUND_S).json()
    assert props["modalities"] == {"vision": False, "audio": True}
    prompt = {"prompt_string": "A <__media__> is", "multimodal_data": [base64_of(sound)]}
    reply = post(server, "/completion", {"prompt": prompt, "n_predict": 2, "temperature": 0}).json()
    assert reply["tokens_evaluated"] > SOUND_ROWS
    listed = httpx.get(f"{server.url}/v1/models", trust_env=False, timeout=BOUND_S).json()["data"][0]
    assert "audio" in listed["capabilities"]


def test_what_cannot_be_heard_costs_only_its_request(server: Server):
    for data, reason in (
        (wav(1.0)[:30], "a recording is damaged"),
        (picture("red"), "is an image, which is not supported here"),
    ):
        body = {**ASKED, "messages": [{"role": "user", "content": [said(data)]}]}
        reply = post(server, "/v1/chat/completions", body)
        assert (reply.status_code, reason in reply.text) == (400, True)
    image = {"type": "image_url", "image_url": {"url": f"data:;base64,{base64_of(picture('red'))}"}}
    reply = post(server, "/v1/chat/completions", {**ASKED, "messages": [{"role": "user", "content": [image]}]})
    assert (reply.status_code, "takes no images" in reply.text) == (400, True)
    assert chat(server, said(wav(1.0)))["choices"][0]["message"]["content"]


def test_the_library_takes_paths_and_bytes_and_encodes_a_long_recording_in_parts(
    smollm2_path: Path, projector: Path, tmp_path: Path
):
    file = tmp_path / "said.wav"
    file.write_bytes(wav(31.0, 220))
    with LLM(str(smollm2_path), ctx_size=1024, mmproj=str(projector)) as llm:
        text = {"type": "text", "text": "What is it?"}
        for count, audio in enumerate((file, file.read_bytes())):
            asked: Any = [{"role": "user", "content": [{"type": "audio", "audio": audio}, text]}]
            answer = llm.chat(asked, temperature=0, max_tokens=4)
            assert answer.usage.audio_tokens == 2 * SOUND_ROWS
            assert (answer.usage.cached_tokens > 2 * SOUND_ROWS) == bool(count)
        assert llm._session._media.num_encoded == 2
