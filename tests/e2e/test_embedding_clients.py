"""The real `openai` and `ollama` clients ask for embeddings: of an encoder, and of a chat model beside its answers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import ollama
import openai
import pytest

from stoker import LLM
from tests.waiting import BOUND_S

TEXTS = ["A cat sits.", "A kitten is sitting.", "Stock markets fell."]


def openai_client(url: str) -> Any:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", http_client=openai.DefaultHttpxClient(trust_env=False))


def test_openai(served_minilm: str, minilm_path: Path):
    with openai_client(served_minilm) as client:
        by_default = client.embeddings.create(model="minilm", input=TEXTS)
        floats = client.embeddings.create(model="minilm", input=TEXTS, encoding_format="float")
        short = client.embeddings.create(model="minilm", input=TEXTS[0], dimensions=16)
    found = np.array([entry.embedding for entry in by_default.data])
    assert [entry.index for entry in by_default.data] == [0, 1, 2]
    np.testing.assert_allclose(found, [entry.embedding for entry in floats.data], atol=1e-5)
    assert by_default.usage.prompt_tokens == by_default.usage.total_tokens == 19
    assert found[0] @ found[1] > found[0] @ found[2]
    assert np.linalg.norm(short.data[0].embedding) == pytest.approx(1, abs=1e-5)
    with LLM(minilm_path) as llm:
        assert (found * llm.embed(TEXTS)).sum(axis=1).min() > 0.9999


def test_openai_async_many_at_once(served_minilm: str):
    async def ask() -> None:
        url = f"{served_minilm}/v1"
        http = openai.DefaultAsyncHttpxClient(trust_env=False)
        async with openai.AsyncOpenAI(base_url=url, api_key="none", http_client=http) as client:
            texts = [f"text number {index}" for index in range(40)]
            asked = [client.embeddings.create(model="minilm", input=text) for text in texts]
            single = [reply.data[0].embedding for reply in await asyncio.gather(*asked)]
            together = await client.embeddings.create(model="minilm", input=texts)
        likeness = np.array(single) @ np.array([entry.embedding for entry in together.data]).T
        assert likeness.argmax(axis=1).tolist() == list(range(40))

    asyncio.run(ask())


def test_ollama(served_minilm: str):
    with ollama.Client(host=served_minilm, trust_env=False) as client:
        reply = client.embed(model="all-minilm-l6-v2", input=[*TEXTS, "word " * 1000], keep_alive="5m")
        old = client.embeddings(model="all-minilm-l6-v2", prompt=TEXTS[0])
        assert client.show("all-minilm-l6-v2").capabilities == ["embedding"]
        with pytest.raises(ollama.ResponseError, match="at most 512"):
            client.embed(model="all-minilm-l6-v2", input="word " * 1000, truncate=False)
    found = np.array(reply.embeddings)
    assert found.shape == (4, 384)
    assert reply.prompt_eval_count == 19 + 512
    assert found[0] @ np.array(old.embedding) > 0.9999


def test_encoder_refuses_to_chat_or_rank(served_minilm: str):
    with openai_client(served_minilm) as client:
        with pytest.raises(openai.BadRequestError, match="does not generate text"):
            client.chat.completions.create(model="minilm", messages=[{"role": "user", "content": "hi"}])
        with pytest.raises(openai.BadRequestError, match="does not generate text"):
            client.completions.create(model="minilm", prompt="hi", stream=True)
    response = httpx.post(
        f"{served_minilm}/rerank", json={"query": "q", "documents": ["a"]}, trust_env=False, timeout=BOUND_S
    )
    assert (response.status_code, "not a reranking model" in response.text) == (400, True)


def test_chat_model_embeds_beside_its_answers(served_smollm2: str):
    question: list[Any] = [{"role": "user", "content": "What is gravity?"}]
    greedy: dict[str, Any] = {"model": "smollm2", "messages": question, "max_tokens": 24, "temperature": 0}
    with openai_client(served_smollm2) as client:
        alone = client.chat.completions.create(**greedy)
        with client.chat.completions.create(**greedy, stream=True) as stream:
            chunks = [next(stream)]
            found = client.embeddings.create(model="smollm2", input=[*TEXTS, "gravity " * 300])
            chunks += stream
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == alone.choices[0].message.content
    cat, kitten, stocks, _ = (np.array(entry.embedding) for entry in found.data)
    assert cat @ kitten > cat @ stocks
