"""`langchain-openai` against a real server with a real model. For heavier frameworks see `test_heavy_clients`."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest

# What they warn of is not ours. The HTTP clients that they make by default are kept, with their connections, until the
# process ends: each test gives them clients that it closes.
pytestmark = pytest.mark.filterwarnings("ignore")

MODEL = "smollm2"
COUNTING = "Continue: 1, 2, 3, 4, 5,"


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """What a framework leaves behind goes with its test."""
    yield
    gc.collect()


@pytest.fixture
def http() -> Iterator[openai.DefaultHttpxClient]:
    with openai.DefaultHttpxClient(trust_env=False) as client:
        yield client


def ask_async(make: Any, method: str, question: Any, **options: Any) -> Any:
    """What the coroutine `method` of the model that `make` gives answers."""

    async def ask() -> Any:
        async with openai.DefaultAsyncHttpxClient(trust_env=False) as client:
            return await getattr(make(**options, http_async_client=client), method)(question)

    return asyncio.run(ask())


def test_langchain_invokes_streams_and_batches(served_smollm2: str, http: openai.DefaultHttpxClient):
    module = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    # Its typed arguments change with its version.
    options: dict[str, Any] = {"base_url": f"{served_smollm2}/v1", "api_key": "none", "model": MODEL, "temperature": 0}
    options |= {"max_tokens": 12, "max_retries": 0, "http_client": http}
    chat: Any = module.ChatOpenAI(**options)
    whole = chat.invoke(COUNTING)
    assert whole.content
    assert whole.usage_metadata["output_tokens"] > 0
    assert "".join(chunk.content for chunk in chat.stream(COUNTING)) == whole.content
    assert [reply.content for reply in chat.batch([COUNTING] * 3)] == [whole.content] * 3
    assert ask_async(module.ChatOpenAI, "ainvoke", COUNTING, **options).content == whole.content


def test_langchain_completes_and_uses_responses(served_smollm2: str, http: openai.DefaultHttpxClient):
    module = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    base: dict[str, Any] = {"base_url": f"{served_smollm2}/v1", "api_key": "none", "model": MODEL, "temperature": 0}
    base["http_client"] = http
    assert module.OpenAI(**base, max_tokens=8).invoke("1, 2, 3, 4,").strip().startswith("5")
    chat: Any = module.ChatOpenAI(**base, max_tokens=16, use_responses_api=True)
    text = chat.invoke(COUNTING).text
    assert (text if isinstance(text, str) else text()) != ""
    assert any(chunk.text for chunk in chat.stream(COUNTING))


def test_langchain_embeds(served_minilm: str, http: openai.DefaultHttpxClient):
    module = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    asked: dict[str, Any] = {"base_url": f"{served_minilm}/v1", "api_key": "none", "model": "minilm"}
    # OpenAI's tokenizer would be downloaded, and its token ids mean other words here.
    asked |= {"check_embedding_ctx_length": False, "http_client": http}
    embeddings: Any = module.OpenAIEmbeddings(**asked, chunk_size=2)
    texts = ["A cat sits.", "Stock markets fell.", "A kitten is sitting."]
    found = np.array(embeddings.embed_documents(texts))
    assert found.shape == (3, 384)
    assert found[0] @ found[2] > found[0] @ found[1]
    np.testing.assert_allclose(embeddings.embed_query(texts[1]), found[1], atol=1e-5)
    at_once = ask_async(module.OpenAIEmbeddings, "aembed_documents", texts, **asked, chunk_size=2)
    np.testing.assert_allclose(at_once, found, atol=1e-5)
    short: Any = module.OpenAIEmbeddings(**asked, dimensions=16)
    assert len(short.embed_query(texts[0])) == 16
