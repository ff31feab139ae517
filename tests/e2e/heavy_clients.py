"""Each verb of `litellm` and of `llama-index` that applies, against the server at `STOKER_URL`.

Run by `test_heavy_clients`, in an environment of its own; by hand: see there.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

# What these clients warn of is not ours; their asynchronous ones leave connections to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore")

URL = os.environ.get("STOKER_URL", "")
OPENAI: dict[str, Any] = {"api_base": f"{URL}/v1", "api_key": "none"}
MODEL = "smollm2"
COUNTING = "Continue: 1, 2, 3, 4, 5,"
CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": COUNTING}],
    "temperature": 0,
    "max_tokens": 8,
    "num_retries": 0,
}


@pytest.fixture(scope="module", autouse=True)
def no_garbage_collection() -> Iterator[None]:
    """A stream that `litellm` leaves in a reference cycle is closed by the garbage collector, which may run while
    httpcore holds the lock that closing takes: the client then waits for itself forever."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="module")
def litellm() -> Any:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the internet for prices
    import litellm  # pyright: ignore[reportMissingImports]

    litellm.telemetry = False
    return litellm


@pytest.mark.parametrize(
    ("model", "base"),
    [
        ("openai", f"{URL}/v1"),
        ("azure", URL),
        ("hosted_vllm", f"{URL}/v1"),
        ("anthropic", URL),
        ("ollama_chat", URL),
    ],
)
def test_litellm_chats_through_each_dialect(litellm: Any, model: str, base: str):
    request = {**CHAT, "model": f"{model}/{MODEL}", "api_base": base, "api_key": "none"}
    if model == "azure":
        request["api_version"] = "2024-10-21"
    whole = litellm.completion(**request)
    assert whole.usage.completion_tokens == 8
    text = whole.choices[0].message.content
    assert text
    assert whole.choices[0].finish_reason == "length"
    chunks = list(litellm.completion(**request, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    assert chunks[-1].choices[0].finish_reason == "length"

    async def acompletion() -> list[str]:
        whole = await litellm.acompletion(**request)
        stream = await litellm.acompletion(**request, stream=True)
        parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
        return [whole.choices[0].message.content, "".join(parts)]

    assert _run(acompletion()) == [text, text]


def test_litellm_batches_and_counts_usage_in_a_stream(litellm: Any):
    request = {**CHAT, **OPENAI, "model": f"openai/{MODEL}"}
    several = litellm.batch_completion(**{**request, "messages": [CHAT["messages"]] * 3})
    assert len({reply.choices[0].message.content for reply in several}) == 1
    *_, last = litellm.completion(**request, stream=True, stream_options={"include_usage": True})
    assert last.usage.completion_tokens == 8


def test_litellm_completes_text(litellm: Any):
    request = {**OPENAI, "model": f"text-completion-openai/{MODEL}", "prompt": "1, 2, 3, 4,", "max_tokens": 8}
    whole = litellm.text_completion(**request, temperature=0)
    assert whole.choices[0].text.strip().startswith("5")
    stream = litellm.text_completion(**request, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text or "" for chunk in stream) == whole.choices[0].text
    again = _run(litellm.atext_completion(**request, temperature=0))
    assert again.choices[0].text == whole.choices[0].text


def test_litellm_embeds(litellm: Any):
    request = {**OPENAI, "model": f"openai/{MODEL}", "input": ["A cat sits.", "Stocks fell."]}
    found = litellm.embedding(**request)
    assert [entry["index"] for entry in found.data] == [0, 1]
    assert found.usage.prompt_tokens > 0
    again = _run(litellm.aembedding(**request))
    assert again.data[0]["embedding"] == pytest.approx(found.data[0]["embedding"], abs=1e-6)
    ollama = litellm.embedding(model=f"ollama/{MODEL}", api_base=URL, input=request["input"])
    assert len(ollama.data) == 2


def test_litellm_uses_responses(litellm: Any):
    request = {**OPENAI, "model": f"openai/{MODEL}", "temperature": 0, "max_output_tokens": 16}
    whole = litellm.responses(**request, input=COUNTING)
    text = whole.output[0].content[0].text
    assert text
    events = list(litellm.responses(**request, input=COUNTING, stream=True))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == text
    second = _run(litellm.aresponses(**request, input="And?", previous_response_id=whole.id))
    assert second.usage.input_tokens > whole.usage.input_tokens
    fetched = litellm.get_responses(whole.id, custom_llm_provider="openai", **OPENAI)
    assert fetched.output[0].content[0].text == text
    items = litellm.list_input_items(whole.id, custom_llm_provider="openai", **OPENAI)
    assert items["data"][0]["content"][0]["text"] == COUNTING
    assert litellm.delete_responses(whole.id, custom_llm_provider="openai", **OPENAI).deleted


def test_litellm_speaks_anthropic(litellm: Any):
    request = {"model": f"anthropic/{MODEL}", "api_base": URL, "api_key": "none", "max_tokens": 8}
    whole = _run(litellm.anthropic.messages.acreate(**request, messages=CHAT["messages"]))
    assert whole["usage"]["output_tokens"] == 8


def test_litellm_gets_the_structure_that_it_asks_for(litellm: Any):
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    structure = {"type": "json_schema", "json_schema": {"name": "number", "schema": schema, "strict": True}}
    request = {**CHAT, **OPENAI, "model": f"openai/{MODEL}", "max_tokens": 64}
    whole = litellm.completion(**request, response_format=structure)
    assert json.loads(whole.choices[0].message.content)["n"] in (1, 2)


def test_litellm_hears_refusals_as_its_own(litellm: Any):
    request = {**CHAT, **OPENAI, "model": f"openai/{MODEL}"}
    with pytest.raises(litellm.BadRequestError, match="response_format"):
        litellm.completion(**request, response_format={"type": "xml"})
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**{**request, "messages": [{"role": "user", "content": "word " * 20_000}]})
    with pytest.raises(litellm.BadRequestError, match="not a reranking model"):
        litellm.rerank(model=f"hosted_vllm/{MODEL}", api_base=URL, query="q", documents=["a", "b"])


def _llama_index(**options: Any) -> Any:
    from llama_index.llms.openai_like import OpenAILike  # pyright: ignore[reportMissingImports]

    return OpenAILike(**OPENAI, model=MODEL, temperature=0, max_tokens=8, max_retries=0, **options)


def test_llama_index_completes():
    llm = _llama_index()
    whole = llm.complete("1, 2, 3, 4,").text
    assert whole.strip().startswith("5")
    assert "".join(part.delta or "" for part in llm.stream_complete("1, 2, 3, 4,")) == whole

    async def asked() -> list[str]:
        parts = [part.delta or "" async for part in await llm.astream_complete("1, 2, 3, 4,")]
        return [(await llm.acomplete("1, 2, 3, 4,")).text, "".join(parts)]

    assert _run(asked()) == [whole, whole]


def test_llama_index_chats():
    from llama_index.core.llms import ChatMessage  # pyright: ignore[reportMissingImports]

    llm = _llama_index(is_chat_model=True)
    messages = [ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content=COUNTING)]
    whole = llm.chat(messages).message.content
    assert whole
    assert "".join(part.delta or "" for part in llm.stream_chat(messages)) == whole

    async def asked() -> list[str]:
        parts = [part.delta or "" async for part in await llm.astream_chat(messages)]
        return [(await llm.achat(messages)).message.content, "".join(parts)]

    assert _run(asked()) == [whole, whole]


def test_llama_index_embeds():
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding  # pyright: ignore[reportMissingImports]

    embedder = OpenAILikeEmbedding(**OPENAI, model_name=MODEL, max_retries=0)
    query = embedder.get_query_embedding("A cat sits.")
    one = embedder.get_text_embedding("A cat sits.")
    many = embedder.get_text_embedding_batch(["A cat sits.", "Stocks fell."])
    assert many[0] == pytest.approx(one, abs=1e-3)
    assert query == pytest.approx(one, abs=1e-3)
    assert _run(embedder.aget_text_embedding("A cat sits.")) == pytest.approx(one, abs=1e-3)


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)
