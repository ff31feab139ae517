"""Real clients of every API, the command line and the library show one image to one model, and all are understood."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import ollama
import pytest
from anthropic import Anthropic
from openai import BadRequestError, OpenAI

from stoker import LLM
from tests.e2e.conftest import Server, serving
from tests.pdf_files import pdf_file
from tests.projector_files import ROWS, base64_of, data_url, picture, write_projector
from tests.waiting import BOUND_S

pytestmark = pytest.mark.slow

QUESTION, NUM_TOKENS = "Which color is it?", 16
RED, BLUE = picture("red"), picture("blue", format="JPEG")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("clients")


@pytest.fixture(scope="module")
def projector(folder: Path) -> Path:
    return write_projector(folder / "mmproj.gguf", 576)


@pytest.fixture(scope="module")
def server(smollm2_path: Path, folder: Path, projector: Path) -> Iterator[Server]:
    options = ("--mmproj", str(projector), "--ctx-size", "1024", "--parallel", "2")
    with serving(str(smollm2_path), *options, log=folder / "log") as server:
        yield server


@pytest.fixture(scope="module")
def openai(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def anthropic(server: Server) -> Iterator[Anthropic]:
    with Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


def seen_by_openai(openai: Any, data: bytes) -> Any:
    parts: Any = [
        {"type": "image_url", "image_url": {"url": data_url(data), "detail": "high"}},
        {"type": "text", "text": QUESTION},
    ]
    return openai.chat.completions.create(
        model="m", messages=[{"role": "user", "content": parts}], temperature=0, max_tokens=NUM_TOKENS
    )


@pytest.fixture(scope="module")
def red(openai: Any) -> str:
    """What the model says about the red image."""
    reply = seen_by_openai(openai, RED)
    assert reply.usage.prompt_tokens_details.model_dump()["image_tokens"] == ROWS
    assert reply.choices[0].message.content != seen_by_openai(openai, BLUE).choices[0].message.content
    return reply.choices[0].message.content


def test_responses(openai: Any, red: str):
    parts: Any = [
        {"type": "input_image", "image_url": data_url(RED), "detail": "auto"},
        {"type": "input_text", "text": QUESTION},
    ]
    reply = openai.responses.create(
        model="m", input=[{"role": "user", "content": parts}], temperature=0, max_output_tokens=NUM_TOKENS
    )
    assert reply.output_text == red
    with openai.responses.stream(
        model="m", input=[{"role": "user", "content": parts}], temperature=0, max_output_tokens=NUM_TOKENS
    ) as stream:
        assert stream.get_final_response().output_text == red


def test_messages(anthropic: Any, red: str):
    source: Any = {"type": "base64", "media_type": "image/png", "data": base64_of(RED)}
    block: Any = {"type": "image", "source": source, "transformations": {"oversized_image": "error"}}
    asked: Any = {"model": "m", "messages": [{"role": "user", "content": [block, {"type": "text", "text": QUESTION}]}]}
    reply = anthropic.messages.create(**asked, max_tokens=NUM_TOKENS, extra_body={"temperature": 0})
    assert reply.content[0].text == red
    counted = anthropic.messages.count_tokens(**asked)
    assert counted.input_tokens == reply.usage.input_tokens + (reply.usage.cache_read_input_tokens or 0)


def test_the_result_of_a_tool_may_be_an_image(anthropic: Any, openai: Any):
    def looked(data: bytes) -> str:
        source = {"type": "base64", "media_type": "image/png", "data": base64_of(data)}
        result = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "image", "source": source}]}
        messages: Any = [
            {"role": "user", "content": "Take a photo, and say which color it has."},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "photo", "input": {}}]},
            {"role": "user", "content": [result]},
        ]
        reply = anthropic.messages.create(
            model="m", messages=messages, max_tokens=NUM_TOKENS, extra_body={"temperature": 0}
        )
        assert reply.usage.input_tokens + (reply.usage.cache_read_input_tokens or 0) > ROWS
        return reply.content[0].text

    def called(data: bytes) -> str:
        output: Any = [{"type": "input_image", "image_url": data_url(data)}]
        items: Any = [
            {"role": "user", "content": "Take a photo, and say which color it has."},
            {"type": "function_call", "call_id": "t1", "name": "photo", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "t1", "output": output},
        ]
        reply = openai.responses.create(model="m", input=items, temperature=0, max_output_tokens=NUM_TOKENS)
        assert reply.usage is not None
        assert reply.usage.input_tokens_details.model_dump()["image_tokens"] == ROWS
        return reply.output_text

    assert looked(RED) != looked(BLUE)
    assert called(RED) != called(BLUE)


def test_ollama(server: Server, folder: Path, red: str):
    """Images stand before the text of their message."""
    path = folder / "red.png"
    path.write_bytes(RED)
    options = {"temperature": 0, "num_predict": NUM_TOKENS}
    with ollama.Client(server.url, trust_env=False) as client:
        name = client.list().models[0].model or ""
        for given in (path, RED, str(path)):
            message = {"role": "user", "content": QUESTION, "images": [given]}
            assert client.chat(name, [message], options=options).message.content == red
            assert client.generate(name, QUESTION, images=[given], options=options).response == red
        assert "vision" in (client.show(name).capabilities or [])


def test_a_completion_of_llama_server(server: Server):
    def completed(data: bytes) -> Any:
        prompt = {"prompt_string": "A <__media__> is", "multimodal_data": [base64.encodebytes(data).decode()]}
        body = {"prompt": prompt, "n_predict": 8, "temperature": 0}
        return httpx.post(f"{server.url}/completion", json=body, timeout=BOUND_S, trust_env=False).json()

    assert completed(RED)["content"] != completed(BLUE)["content"]


def test_a_document_becomes_images(anthropic: Any, openai: Any):
    data = base64_of(pdf_file(["Prices", "Dates"]))
    source = {"type": "base64", "media_type": "application/pdf", "data": data}
    content: Any = [{"type": "document", "source": source}, {"type": "text", "text": "What is it about?"}]
    reply = anthropic.messages.create(model="m", messages=[{"role": "user", "content": content}], max_tokens=2)
    assert reply.usage.input_tokens + (reply.usage.cache_read_input_tokens or 0) > 2 * ROWS
    file: Any = {"file_data": f"data:application/pdf;base64,{data}", "filename": "x.pdf"}
    parts: Any = [{"type": "file", "file": file}, {"type": "text", "text": "What is it about?"}]
    chat = openai.chat.completions.create(model="m", messages=[{"role": "user", "content": parts}], max_tokens=2)
    assert chat.usage is not None
    assert chat.usage.model_dump()["prompt_tokens_details"]["image_tokens"] == 2 * ROWS


def test_a_file_of_another_format_is_refused_with_what_to_send(openai: Any):
    with pytest.raises(BadRequestError, match=r"is an SVG image.* send PNG, JPEG, WebP or GIF"):
        seen_by_openai(openai, b"<svg/>")


def test_listings(server: Server):
    def got(path: str) -> Any:
        return httpx.get(server.url + path, timeout=BOUND_S, trust_env=False).json()

    assert "vision" in got("/v1/models")["data"][0]["capabilities"]
    assert "vision" in got("/api/tags")["models"][0]["capabilities"]
    assert got("/props")["modalities"]["vision"] is True


def test_the_library_and_the_command_line(smollm2_path: Path, projector: Path, folder: Path, red: str):
    path = folder / "seen.png"
    path.write_bytes(RED)
    with LLM(str(smollm2_path), ctx_size=1024, mmproj=str(projector)) as llm:
        for given in (str(path), path, RED):
            content = [{"type": "image", "image": given}, {"type": "text", "text": QUESTION}]
            reply = llm.chat([{"role": "user", "content": content}], temperature=0, max_tokens=NUM_TOKENS)
            assert reply.text == red
    command = [sys.executable, "-m", "stoker"]
    options = ["--mmproj", str(projector), "--ctx-size", "1024", "--temperature", "0", "--max-tokens", str(NUM_TOKENS)]
    environment = {**os.environ, "NO_COLOR": "1"}
    run = [*command, "run", str(smollm2_path), QUESTION, "--image", str(path), *options]
    done = subprocess.run(run, capture_output=True, text=True, timeout=BOUND_S, env=environment, check=False)
    assert red.strip() in done.stdout, done.stderr
    talk = [*command, "chat", str(smollm2_path), *options]
    asked = f"/image {path}\n{QUESTION}\n"
    done = subprocess.run(
        talk, input=asked, capture_output=True, text=True, timeout=BOUND_S, env=environment, check=False
    )
    assert red.strip() in done.stdout, done.stderr
