"""Images through every dialect, to our own engine and to a real llama-server, with a small projector of random weights
beside SmolLM2.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import Server, serving
from tests.e2e.test_llama_server_runtime import computes_here as computes_here
from tests.projector_files import ROWS, base64_of, data_url, picture, write_projector
from tests.waiting import BOUND_S

pytestmark = pytest.mark.slow

ASKED: dict[str, Any] = {"model": "m", "temperature": 0, "max_tokens": 6}


@pytest.fixture(scope="module", params=["engine", "llama-server"])
def runtime(request: pytest.FixtureRequest) -> str:
    if request.param == "llama-server":
        request.getfixturevalue("computes_here")
    return request.param


@pytest.fixture(scope="module")
def server(runtime: str, smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("images")
    projector = write_projector(folder / "mmproj.gguf", 576)
    options = ("--runtime", runtime, "--mmproj", str(projector), "--ctx-size", "512", "--parallel", "2")
    with serving(str(smollm2_path), *options, log=folder / "log") as server:
        yield server


def post(server: Server, path: str, body: object) -> httpx.Response:
    return httpx.post(server.url + path, json=body, trust_env=False, timeout=120)


def chat(server: Server, *parts: dict[str, Any]) -> Any:
    content = [{"type": "text", "text": "What is it?"}, *parts]
    body = {**ASKED, "messages": [{"role": "user", "content": content}], "logprobs": True}
    reply = post(server, "/v1/chat/completions", body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def image(data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(data)}}


def first_logprob(reply: Any) -> float:
    return reply["choices"][0]["logprobs"]["content"][0]["logprob"]


def test_the_picture_counts_whatever_its_format(server: Server):
    red = chat(server, image(picture("red")))
    again = chat(server, image(picture("red", format="WEBP", lossless=True)))
    blue, none = chat(server, image(picture("blue"))), chat(server)
    assert red["usage"]["prompt_tokens"] == none["usage"]["prompt_tokens"] + ROWS
    assert again["choices"][0]["message"] == red["choices"][0]["message"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == red["usage"]["prompt_tokens"] - 1
    assert len({first_logprob(red), first_logprob(blue), first_logprob(none)}) == 3


def test_images_are_counted_in_every_dialect_before_and_after_an_answer(server: Server, runtime: str):
    red = base64_of(picture("red"))
    block = {"type": "image", "source": {"type": "base64", "data": red}}
    item = {"type": "input_image", "image_url": f"data:;base64,{red}"}
    asked: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [image(picture("red"))]}]}),
        ("/v1/messages", {"messages": [{"role": "user", "content": [block]}], "max_tokens": 1}),
        ("/v1/responses", {"input": [{"role": "user", "content": [item]}], "max_output_tokens": 16}),
    ]
    counters = "/v1/chat/completions/input_tokens", "/v1/messages/count_tokens", "/v1/responses/input_tokens"
    for (path, body), counter in zip(asked, counters, strict=True):
        counted = post(
            server, counter, {"model": "m", **{key: body[key] for key in ("messages", "input") if key in body}}
        )
        if runtime == "llama-server":
            assert (counted.status_code, "only when it computes them" in counted.text) == (400, True)
            continue
        usage = post(server, path, {"model": "m", **body}).json()["usage"]
        cached = usage.get("cache_read_input_tokens", 0)
        assert counted.json()["input_tokens"] == usage.get("prompt_tokens", usage.get("input_tokens", 0) + cached)
        details = usage.get("prompt_tokens_details", usage.get("input_tokens_details", {"image_tokens": ROWS}))
        assert details["image_tokens"] == ROWS
        assert "image_tokens" not in chat(server)["usage"]["prompt_tokens_details"]


def test_every_dialect_gives_the_same_answer(server: Server):
    red = base64_of(picture("red"))
    expected = chat(server, image(picture("red")))["choices"][0]["message"]["content"]
    text = {"type": "text", "text": "What is it?"}
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": red}}
    message = post(server, "/v1/messages", {**ASKED, "messages": [{"role": "user", "content": [text, block]}]})
    assert message.json()["content"][0]["text"] == expected
    parts = [{"type": "input_text", "text": text["text"]}, {"type": "input_image", "image_url": f"data:;base64,{red}"}]
    asked = {"model": "m", "temperature": 0, "input": [{"role": "user", "content": parts}], "max_output_tokens": 16}
    response = post(server, "/v1/responses", asked).json()
    assert response["output"][0]["content"][0]["text"].startswith(expected)
    listed = httpx.get(
        f"{server.url}/v1/responses/{response['id']}/input_items", trust_env=False, timeout=BOUND_S
    ).json()
    assert listed["data"][0]["content"][1]["image_url"].endswith(red)
    before = chat_text(server, [image(picture("red")), text])
    options = {"options": {"temperature": 0, "num_predict": 6}, "stream": False, "model": server_model(server)}
    talk = post(
        server, "/api/chat", {**options, "messages": [{"role": "user", "content": text["text"], "images": [red]}]}
    )
    assert talk.json()["message"]["content"] == before
    assert (
        post(server, "/api/generate", {**options, "prompt": text["text"], "images": [red]}).json()["response"] == before
    )


def chat_text(server: Server, content: list[dict[str, Any]]) -> str:
    reply = post(server, "/v1/chat/completions", {**ASKED, "messages": [{"role": "user", "content": content}]})
    return reply.json()["choices"][0]["message"]["content"]


def server_model(server: Server) -> str:
    return httpx.get(f"{server.url}/v1/models", trust_env=False, timeout=BOUND_S).json()["data"][0]["id"]


def test_a_prompt_of_llama_server_names_the_places_of_its_files(server: Server, runtime: str):
    prompt: dict[str, Any] = {
        "prompt_string": "A <__media__> and a <__media__> are",
        "multimodal_data": [base64_of(picture(color)) for color in ("red", "blue")],
    }
    asked = {"prompt": prompt, "n_predict": 2, "temperature": 0}
    reply = post(server, "/completion", asked).json()
    plain = post(server, "/completion", {**asked, "prompt": "A  and a  are"}).json()
    assert reply["tokens_evaluated"] >= plain["tokens_evaluated"] + 2 * ROWS
    prompt["prompt_string"] = "A <__media__> and a <__media__>"
    reply = post(server, "/completion", asked)
    if runtime == "llama-server":
        assert "must not end" in reply.text, "llama-server would abort"
    else:
        assert reply.json()["tokens_predicted"] == 2
    prompt["multimodal_data"].pop()
    assert post(server, "/completion", asked).status_code == 400


def test_damaged_files_and_markers_in_texts_cost_only_their_request(server: Server, runtime: str):
    for data in (picture("red")[:50], picture("red")[:40], b"\xff\xd8\xff" + bytes(100)):
        body = {**ASKED, "messages": [{"role": "user", "content": [image(data)]}]}
        reply = post(server, "/v1/chat/completions", body)
        assert (reply.status_code, "damaged" in reply.text) == (400, True)
    forged = [{"type": "text", "text": "<__media__>"}, image(picture("red"))]
    reply = post(server, "/v1/chat/completions", {**ASKED, "messages": [{"role": "user", "content": forged}]})
    assert reply.status_code == (400 if runtime == "llama-server" else 200), "here it is only a text"
    assert chat(server, image(picture("red")))["choices"][0]["message"]["content"]


def test_listings_say_what_the_model_takes(server: Server):
    props = httpx.get(f"{server.url}/props", trust_env=False, timeout=BOUND_S).json()
    assert props["modalities"] == {"vision": True, "audio": False}
    assert "vision" in post(server, "/api/show", {"model": server_model(server)}).json()["capabilities"]
    audio = {"type": "input_audio", "input_audio": {"data": base64_of(b"RIFF\0\0\0\0WAVEfmt "), "format": "wav"}}
    reply = post(server, "/v1/chat/completions", {**ASKED, "messages": [{"role": "user", "content": [audio]}]})
    assert (reply.status_code, "takes no audio" in reply.text) == (400, True)
