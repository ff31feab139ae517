"""Adapters over HTTP with a real model: every dialect asks for them, they come and go, and survive a crash."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI
from psutil import Process

from tests.adapter_files import random_pairs, write_adapter
from tests.e2e.conftest import Server, serving
from tests.waiting import BOUND_S, wait_for, wait_until

pytestmark = pytest.mark.slow

NAMES = ("poet", "clerk")
PROMPT = "The old lighthouse keeper climbed the spiral stairs every evening, carrying a lamp and a book"


@pytest.fixture(scope="module")
def adapters(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {
        name: write_adapter(folder / f"{name}.gguf", random_pairs(smollm2_path, seed, size=1.5, matrices=("attn_v",)))
        for seed, name in enumerate((*NAMES, "late"))
    }


@pytest.fixture(scope="module")
def server(adapters: dict[str, Path], smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    assert smollm2_path.is_file()
    lora = [argument for name in NAMES for argument in ("--lora", f"{name}={adapters[name]}")]
    log = tmp_path_factory.mktemp("served_adapters") / "log"
    with serving("smollm2", *lora, "--ctx-size", "512", "--kv-tokens", "2048", "--cache-ram", "64", log=log) as server:
        yield server


def ask(server: Server, method: str, where: str, /, **body: Any) -> httpx.Response:
    return httpx.request(method, f"{server.url}{where}", json=body or None, trust_env=False, timeout=BOUND_S)


Said = dict[str, float]
"""The likeliest first tokens with their log-probabilities: the same numbers, whoever else is served."""


def complete(server: Server, *, prompt: str = PROMPT, **body: Any) -> Said:
    reply = ask(server, "POST", "/v1/completions", prompt=prompt, temperature=0, max_tokens=1, logprobs=20, **body)
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]["logprobs"]["top_logprobs"][0]


def first_tokens(pieces: list[dict[str, Any]]) -> Said:
    """As the other APIs write them."""
    return {piece["token"]: piece["logprob"] for piece in pieces}


@pytest.fixture(scope="module")
def alone(server: Server) -> dict[str, Said]:
    """What each adapter says to a prompt of its own, with nobody beside it."""
    return {name: complete(server, lora=[{"name": name}]) for name in NAMES} | {"": complete(server, lora=[])}


def test_each_adapter_says_something_else(alone: dict[str, Said]) -> None:
    assert alone["poet"] != alone["clerk"] != alone[""] != alone["poet"]


def test_answers_under_traffic_are_those_of_each_alone(server: Server, alone: dict[str, Said]) -> None:
    names = [*NAMES, ""] * 4
    with ThreadPoolExecutor(len(names)) as threads:
        said = list(threads.map(lambda name: complete(server, lora=[name] if name else []), names))
    assert said == [alone[name] for name in names]


def test_every_dialect_asks_for_adapters(server: Server, alone: dict[str, Said]) -> None:
    assert complete(server, model="smollm2:poet") == alone["poet"]
    assert complete(server, lora="clerk") == alone["clerk"]
    assert complete(server, lora=[{"id": 0, "scale": 1.0}]) == alone["poet"]
    assert complete(server) == alone[""]
    native = ask(server, "POST", "/completion", prompt=PROMPT, temperature=0, n_predict=1, n_probs=20, lora=[{"id": 1}])
    assert first_tokens(native.json()["completion_probabilities"][0]["top_logprobs"]) == alone["clerk"]
    fields = {"prompt": PROMPT, "raw": True, "stream": False, "options": {"num_predict": 1}, "top_logprobs": 20}
    for model, lora in (("smollm2", ["poet"]), ("smollm2:poet", None)):
        ollama = ask(server, "POST", "/api/generate", model=model, lora=lora, **fields)
        assert first_tokens(ollama.json()["logprobs"][0]["top_logprobs"]) == alone["poet"]
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        said = client.completions.create(model="smollm2:clerk", prompt=PROMPT, max_tokens=1, logprobs=20)
    assert said.choices[0].logprobs is not None
    assert said.choices[0].logprobs.top_logprobs is not None
    assert said.choices[0].logprobs.top_logprobs[0] == alone["clerk"]
    messages = [{"role": "user", "content": "Say something."}]
    chats: set[str] = set()
    for lora in ([], ["poet"]):
        reply = ask(
            server, "POST", "/v1/messages", model="smollm2", max_tokens=6, temperature=0, messages=messages, lora=lora
        )
        chats.add(reply.json()["content"][0]["text"])
    assert len(chats) == 2


@pytest.mark.parametrize("body", [{"lora": ["sql"]}, {"model": "smollm2:sql"}, {"lora": [{"id": 9}]}])
def test_unknown_adapters_are_404(server: Server, body: dict[str, Any]) -> None:
    for stream in (False, True):
        reply = ask(server, "POST", "/v1/completions", prompt="hi", stream=stream, **body)
        assert reply.status_code == 404
        assert reply.json()["error"]["code"] == "adapter_not_found"
        assert "`poet`, `clerk`" in reply.json()["error"]["message"]


def test_adapters_of_embeddings_are_refused_not_ignored(server: Server) -> None:
    for body in ({"lora": ["poet"]}, {"model": "smollm2:poet"}):
        assert ask(server, "POST", "/v1/embeddings", input="hi", **body).status_code == 400
    assert ask(server, "POST", "/v1/embeddings", input="hi").status_code == 200


def test_adapters_come_and_go_and_survive_a_crash(
    server: Server, adapters: dict[str, Path], alone: dict[str, Said]
) -> None:
    loaded = ask(server, "POST", "/lora-adapters", name="late", path=str(adapters["late"]))
    assert loaded.json()["success"]
    late = complete(server, lora=["late"])
    assert all(late != other for other in alone.values())
    assert ask(server, "POST", "/lora-adapters", name="late", path=str(adapters["late"])).status_code == 400
    assert ask(server, "POST", "/lora-adapters", name="x", path="/nowhere.gguf").status_code == 400
    scales = httpx.post(f"{server.url}/lora-adapters", json=[{"id": 0, "scale": 1.0}], trust_env=False, timeout=BOUND_S)
    assert [entry["scale"] for entry in scales.json()["adapters"]] == [1.0, 0.0, 0.0]
    assert complete(server) == alone["poet"]
    before = ask(server, "GET", "/lora-adapters").json()
    assert [(entry["id"], entry["name"], entry["scale"]) for entry in before][2] == (2, "late", 0.0)
    kill_engine(server)
    assert ask(server, "GET", "/lora-adapters").json() == before
    assert complete(server) == alone["poet"]
    assert complete(server, lora=["late"]) == late
    assert ask(server, "POST", "/models/load", model="smollm2", reload=True, wait=True).json()["success"]
    assert ask(server, "GET", "/lora-adapters").json() == before, "they are the model's, not the engine's"
    assert complete(server, model="smollm2:late") == late
    listed = ask(server, "GET", "/v1/models").json()["data"]
    assert {"smollm2:poet", "smollm2:late"} < {entry["id"] for entry in listed}
    httpx.post(f"{server.url}/lora-adapters", json=[], trust_env=False, timeout=BOUND_S)
    assert ask(server, "DELETE", "/lora-adapters/late").json()["success"]
    assert ask(server, "DELETE", "/lora-adapters/late").status_code == 404
    assert complete(server) == alone[""]


def test_adapters_are_measured(server: Server) -> None:
    def metrics() -> str:
        return ask(server, "GET", "/metrics").text

    wanted = 'stoker_adapter_completion_tokens_total{adapter="poet",model="smollm2"}'
    text = wait_for(metrics, lambda text: wanted in text)
    assert 'stoker_adapter_requests_running{adapter="clerk",model="smollm2"} 0.0' in text


def kill_engine(server: Server) -> None:
    (engine,) = [child for child in Process(server.pid).children() if "stoker.assembly" in child.cmdline()]
    engine.kill()
    engine.wait(BOUND_S)
    wait_until(lambda: all(ask(server, "GET", path).status_code == 200 for path in ("/health", "/lora-adapters")))
