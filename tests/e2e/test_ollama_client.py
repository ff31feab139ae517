"""The real `ollama` client against a real server with a real model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ollama
import pytest

from tests.e2e.conftest import serving

MODEL = "smollm2"
QUESTION: list[Any] = [{"role": "user", "content": "What is gravity?"}]
OPTIONS: dict[str, Any] = {"temperature": 0, "num_predict": 12}


@pytest.fixture
def client(served_smollm2: str) -> Iterator[Any]:
    with ollama.Client(host=served_smollm2, trust_env=False) as client:
        yield client


def test_chat(client: Any):
    reply = client.chat(model=MODEL, messages=QUESTION, options={**OPTIONS, "num_predict": 32})
    assert "physics" in reply.message.content
    assert (reply.done, reply.done_reason, reply.eval_count) == (True, "length", 32)
    assert reply.total_duration >= reply.prompt_eval_duration + reply.eval_duration > 1_000_000, "nanoseconds"


def test_streamed_chat_equals_the_whole_reply(client: Any):
    whole = client.chat(model=MODEL, messages=QUESTION, options=OPTIONS)
    *parts, last = client.chat(model=MODEL, messages=QUESTION, options=OPTIONS, stream=True)
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert (last.done, last.eval_count) == (True, whole.eval_count)
    assert last.prompt_eval_count == whole.prompt_eval_count


def test_generate(client: Any):
    request: dict[str, Any] = {"model": f"{MODEL}:latest", "prompt": "What is gravity?", "system": "Be brief."}
    whole = client.generate(**request, options=OPTIONS)
    *parts, last = client.generate(**request, options=OPTIONS, stream=True)
    assert "".join(part.response for part in parts) == whole.response
    assert last.context == whole.context
    assert len(whole.context) == whole.prompt_eval_count + whole.eval_count
    raw = client.generate(model=MODEL, prompt="1, 2, 3, 4,", raw=True, options=OPTIONS)
    assert "5" in raw.response


def test_context_is_continued(client: Any):
    first = client.generate(model=MODEL, prompt="My name is Ada.", options={**OPTIONS, "num_predict": 24})
    second = client.generate(model=MODEL, prompt="What is my name?", context=first.context, options=OPTIONS)
    assert second.prompt_eval_count > len(first.context)
    assert second.context[: len(first.context)] == first.context


def test_log_probabilities(client: Any):
    reply = client.chat(model=MODEL, messages=QUESTION, options=OPTIONS, logprobs=True, top_logprobs=2)
    assert "".join(position.token for position in reply.logprobs) == reply.message.content
    assert all(len(position.top_logprobs) == 2 for position in reply.logprobs)


def test_loading_and_what_is_loaded(client: Any):
    assert client.generate(model=MODEL, prompt="").done_reason == "load"
    assert client.chat(model=MODEL, messages=[], keep_alive="5m").done_reason == "load"
    (running,) = client.ps().models
    assert running.model == f"{MODEL}:latest"
    assert running.context_length > 0
    assert 0 < running.expires_at.timestamp() - time.time() <= 300
    assert client.generate(model=MODEL, prompt="", keep_alive=-1).done_reason == "load"
    assert client.ps().models[0].expires_at.year > 2100


def test_models_on_disk(client: Any):
    listed = {model.model: model for model in client.list().models}
    found = listed[f"{MODEL}:latest"]
    assert (found.details.family, found.details.quantization_level) == ("llama", "Q4_1")
    assert found.details.parameter_size.startswith("134.")
    assert found.size > 90_000_000
    shown = client.show(MODEL)
    assert shown.modelinfo["llama.context_length"] == 8192
    assert shown.modelinfo["tokenizer.ggml.tokens"] is None
    assert shown.capabilities[0] == "completion"
    assert "im_start" in shown.template


def test_pull_what_is_here_already(client: Any):
    assert client.pull(MODEL).status == "success"
    assert [part.status for part in client.pull(MODEL, stream=True)][-1] == "success"


def test_copy_and_delete(client: Any):
    name = "a-copy-of-the-end-to-end-test"
    assert client.copy(MODEL, name).status == "success"
    try:
        assert client.show(name).capabilities
        assert client.generate(model=name, prompt="1, 2,", options=OPTIONS).done
    finally:
        assert client.delete(name).status == "success"
    with pytest.raises(ollama.ResponseError, match="not found"):
        client.delete(name)


@pytest.mark.slow
def test_create(smollm2_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "base.gguf").symlink_to(smollm2_path)
    open_server = serving("--models-dir", str(folder), "--ctx-size", "512", log=tmp_path / "log")
    with open_server as server, ollama.Client(server.url, trust_env=False) as client:
        made = client.create("pirate", from_="base", system="You are a pirate.", parameters={"num_predict": 5})
        assert made.status == "success"
        assert "pirate:latest" in [model.model for model in client.list().models]
        plain = client.chat("base", QUESTION, options={"num_predict": 1})
        reply = client.chat("pirate", QUESTION)
        assert (reply.eval_count, reply.done_reason) == (5, "length")
        assert reply.prompt_eval_count != plain.prompt_eval_count, "it has another system prompt"
        statuses = [part.status for part in client.create("pirate", from_="pirate", system="Be brief.", stream=True)]
        assert statuses[-1] == "success"
        assert client.chat("pirate", QUESTION).eval_count == 5, "what was not given anew is as before"
        assert client.delete("pirate").status == "success"
        with pytest.raises(ollama.ResponseError, match="not found"):
            client.delete("pirate")


def test_errors_arrive_as_the_clients_own(client: Any):
    with pytest.raises(ollama.ResponseError, match="not found") as unknown:
        client.show("other")
    assert unknown.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="being served"):
        client._request_raw("DELETE", "/api/delete", json={"model": MODEL})
    with pytest.raises(ollama.ResponseError, match="exceeds the available context size"):
        list(client.generate(model=MODEL, prompt="word " * 20_000, stream=True))
    with pytest.raises(ollama.ResponseError, match="started with a list of models"):
        client.create("mine", from_=MODEL)
    with pytest.raises(ollama.ResponseError, match="cannot be enforced"):
        client.chat(model=MODEL, messages=QUESTION, format={"type": "string", "contains": {}})
    tool: Any = {"type": "function", "function": {"name": "a clock"}}
    with pytest.raises(ollama.ResponseError, match="tools"):
        client.chat(model=MODEL, messages=QUESTION, tools=[tool])


@pytest.mark.parametrize(
    "verb",
    [
        lambda client: client.create_blob(__file__),
        lambda client: client.push(MODEL),
    ],
)
def test_what_is_not_served_says_so(client: Any, verb: Callable[[Any], object]):
    with pytest.raises(ollama.ResponseError, match="unknown endpoint") as unknown:
        verb(client)
    assert unknown.value.status_code == 404


def test_async_client(served_smollm2: str):
    async def ask() -> None:
        client: Any
        async with ollama.AsyncClient(host=served_smollm2, trust_env=False) as client:
            whole = await client.chat(model=MODEL, messages=QUESTION, options=OPTIONS)
            parts = [
                part async for part in await client.chat(model=MODEL, messages=QUESTION, options=OPTIONS, stream=True)
            ]
            assert "".join(part.message.content for part in parts) == whole.message.content
            generated = await client.generate(model=MODEL, prompt="hi", options=OPTIONS)
            assert generated.eval_count <= 12
            assert (await client.list()).models
            assert (await client.show(MODEL)).capabilities
            assert (await client.ps()).models

    asyncio.run(ask())
