"""Embeddings and ranks over HTTP: the shapes that clients of each dialect expect, and what is refused."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from typing import Any

import httpx
import numpy as np
import pytest

from stoker.errors import InvalidInput, Overloaded
from tests.unit.server.fake_runtime import LOADING, FakeRuntime, RawClient, ask, make_app
from tests.waiting import BOUND_S


def post(path: str, runtime: FakeRuntime | None = None, **body: Any) -> httpx.Response:
    return ask(make_app(runtime or FakeRuntime(), max_inputs=4), "POST", path, json=body)


def test_openai_embeddings():
    reply = post("/v1/embeddings", input=["a", [5, 6]], model="any").json()
    assert reply == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [1.0, 0.5, -0.25]},
            {"object": "embedding", "index": 1, "embedding": [2.0, 0.5, -0.25]},
        ],
        "model": "tiny",
        "usage": {"prompt_tokens": 3, "total_tokens": 3},
    }


def test_base64_is_the_same_numbers():
    (entry,) = post("/v1/embeddings", input="ab", encoding_format="base64").json()["data"]
    assert np.frombuffer(b64decode(entry["embedding"]), dtype="<f4").tolist() == [2.0, 0.5, -0.25]


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        ("ab", ["ab"]),
        (["ab"], ["ab"]),
        ([5, 6], [[5, 6]]),
        ([[5], [6, 7]], [[5], [6, 7]]),
        (["a", [5]], ["a", [5]]),
        ({"prompt_string": "ab"}, ["ab"]),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, ["ab"]),
        (["a", {"prompt_string": "b"}], ["a", "b"]),
        ([5, "hi", 6], [[5, 104, 105, 6]]),
        (["hi", 5], [[256, 104, 105, 5]]),
        (["a", [5, "hi"]], ["a", [5, 104, 105]]),
        ([5, {"prompt_string": "hi"}], [[5, 104, 105]]),
    ],
)
def test_forms_of_inputs(given: Any, inputs: Any):
    runtime = FakeRuntime()
    assert post("/v1/embeddings", runtime, input=given).status_code == 200
    assert runtime.embeds[0].inputs == inputs


@pytest.mark.parametrize(
    ("path", "body", "parameter"),
    [
        ("/v1/embeddings", {}, "input"),
        ("/v1/embeddings", {"input": []}, "input"),
        ("/v1/embeddings", {"input": [[6], 5]}, "input"),
        ("/v1/embeddings", {"input": [5, *["a"] * 1025]}, "input"),
        ("/v1/embeddings", {"input": {}}, "input"),
        ("/v1/embeddings", {"input": ["a", {"content": []}]}, "input[1]"),
        ("/v1/embeddings", {"input": {"content": [{"type": "image_url"}]}}, "input.content"),
        ("/v1/embeddings", {"input": ["a"] * 5}, "input"),
        ("/v1/embeddings", {"input": "a", "dimensions": 0}, "dimensions"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ("/v1/embeddings", {"input": "a", "timeout": 0}, "timeout"),
        ("/v1/embeddings", {"input": "a", "truncate": "START"}, "truncate"),
        ("/embedding", {}, "content"),
        ("/embedding", {"content": "a", "embd_normalize": -2}, "embd_normalize"),
        ("/embedding", {"content": "a", "input": "b"}, "content"),
        ("/embedding", {"input": []}, "input"),
        ("/v1/rerank", {"documents": ["a"]}, "query"),
        ("/v1/rerank", {"query": "q"}, "documents"),
        ("/v1/rerank", {"query": "q", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "q", "documents": ["a"], "texts": ["a"]}, "texts"),
        ("/v1/rerank", {"query": "q", "documents": ["a"], "top_n": 0}, "top_n"),
        ("/v1/rerank", {"query": "q", "documents": [{"body": "a"}]}, "documents[0]"),
    ],
)
def test_refused_before_the_engine_hears_of_it(path: str, body: dict[str, Any], parameter: str):
    runtime = FakeRuntime()
    response = post(path, runtime, **body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, parameter)
    assert runtime.embeds == []


@pytest.mark.parametrize(("side", "truncates"), [("END", True), ("NONE", False)])
def test_the_side_to_cut_may_be_named(side: str, truncates: bool):
    runtime = FakeRuntime()
    assert post("/v1/embeddings", runtime, input="hi", truncate=side).status_code == 200
    assert runtime.embeds[0].truncates is truncates


def test_token_ids_are_one_input_however_many():
    runtime = FakeRuntime()
    assert post("/v1/embeddings", runtime, input=list(range(1000))).status_code == 200
    assert len(runtime.embeds[0].inputs) == 1


def test_native_embedding():
    reply = post("/embedding", content=["a", "bc"]).json()
    assert reply == [
        {"index": 0, "embedding": [[1.0, 0.5, -0.25]]},
        {"index": 1, "embedding": [[2.0, 0.5, -0.25]]},
    ]


def test_native_embedding_takes_both_words_for_its_texts():
    runtime = FakeRuntime()
    for body in ({"input": "ab"}, {"content": None, "input": "ab"}, {"content": "ab", "input": "ab"}):
        assert post("/embedding", runtime, **body).json() == [{"index": 0, "embedding": [[2.0, 0.5, -0.25]]}]
    assert [(embed.inputs, embed.parameter) for embed in runtime.embeds] == [(["ab"], "input")] * 3


def test_rerank_puts_the_best_first_and_keeps_equals_in_order():
    runtime = FakeRuntime()
    documents = ["ab", {"text": "abcd", "title": "x"}, "cd", "abc"]
    reply = post("/v1/rerank", runtime, query="q", documents=documents, top_n=3, return_documents=True).json()
    assert [result["index"] for result in reply["results"]] == [1, 3, 0]
    assert reply["results"][0]["document"] == {"text": "abcd"}
    assert reply["results"][0]["relevance_score"] == pytest.approx(1 / (1 + np.exp(-4)))
    assert reply["usage"] == {"prompt_tokens": 11, "total_tokens": 11}
    assert (runtime.embeds[0].query, runtime.embeds[0].inputs) == ("q", ["ab", "abcd", "cd", "abc"])
    assert "document" not in post("/rerank", query="q", documents=["a"]).json()["results"][0]


def test_rerank_in_the_words_of_text_embeddings_inference():
    reply = post("/rerank", query="q", texts=["a", "abc"], raw_scores=True, return_text=True).json()
    assert reply == [{"index": 1, "score": 3.0, "text": "abc"}, {"index": 0, "score": 1.0, "text": "a"}]


def test_ollama_embed():
    runtime = FakeRuntime()
    reply = post("/api/embed", runtime, model="tiny:latest", input=["a", "bc"], keep_alive="5m").json()
    assert reply["model"] == "tiny:latest"
    assert reply["embeddings"] == [[1.0, 0.5, -0.25], [2.0, 0.5, -0.25]]
    assert reply["prompt_eval_count"] == 3
    assert reply["total_duration"] >= reply["load_duration"] >= 0
    assert runtime.embeds[0].truncates


def test_ollama_embed_with_zero_dimensions_has_all():
    runtime = FakeRuntime()
    assert post("/api/embed", runtime, model="tiny", input="a", dimensions=0).status_code == 200
    assert post("/api/embed", runtime, model="tiny", input="a", dimensions=-1).status_code == 400
    assert [embed.dimensions for embed in runtime.embeds] == [None]


@pytest.mark.parametrize("nothing", [{}, {"input": ""}, {"input": []}])
def test_ollama_embed_of_nothing_only_loads(nothing: dict[str, Any]):
    runtime = FakeRuntime()
    assert post("/api/embed", runtime, model="tiny", **nothing).json()["embeddings"] == []
    assert runtime.embeds == []


def test_ollama_embeddings():
    assert post("/api/embeddings", model="tiny", prompt="ab").json() == {"embedding": [2.0, 0.5, -0.25]}
    assert post("/api/embeddings", model="tiny").json() == {"embedding": []}


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/rerank", "/embedding", "/api/embed", "/api/embeddings"])
def test_errors_come_in_the_dialect_of_the_path(path: str, monkeypatch: pytest.MonkeyPatch):
    body = {"input": "a", "content": "a", "query": "q", "documents": ["a"], "prompt": "a", "model": "tiny"}
    for error, status in ((InvalidInput("no", parameter="model"), 400), (Overloaded("full", retry_after_s=7), 429)):
        runtime = FakeRuntime()

        async def refuse(_: Any, error: Exception = error) -> Any:
            raise error

        monkeypatch.setattr(runtime, "ask", refuse)
        response = post(path, runtime, **body)
        is_ollama = path.startswith("/api")
        assert response.status_code == (503 if is_ollama and status == 429 else status)
        assert isinstance(response.json()["error"], str) == is_ollama
        assert ("retry-after" in response.headers) == (status == 429)


def test_not_before_it_is_loaded():
    runtime = FakeRuntime()
    runtime.state = LOADING
    assert post("/api/embed", runtime, model="tiny", input="").status_code == 503


def test_client_who_leaves_takes_the_request_back():
    async def test() -> None:
        runtime = FakeRuntime()
        runtime.embed_gate = asyncio.Event()
        client = RawClient(make_app(runtime), "/v1/embeddings", {"input": "a"})
        await runtime.arrived(1)
        assert runtime.held
        client.leave()
        await asyncio.wait_for(client.task, BOUND_S)
        assert not runtime.held

    asyncio.run(test())
