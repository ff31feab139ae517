"""Frameworks that speak OpenAI's API, against a real server with a real model. Those not installed are skipped."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest

# What they warn of is not ours; their asynchronous clients leave connections to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore")

MODEL = "smollm2"
COUNTING = "Continue: 1, 2, 3, 4, 5,"


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """What a framework leaves behind goes with its test."""
    yield
    gc.collect()


def test_langchain_invokes_streams_and_batches(served_smollm2: str):
    module = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    # Its typed arguments change with its version.
    chat: Any = module.ChatOpenAI(
        base_url=f"{served_smollm2}/v1", api_key="none", model=MODEL, temperature=0, max_tokens=12, max_retries=0
    )
    whole = chat.invoke(COUNTING)
    assert whole.content
    assert whole.usage_metadata["output_tokens"] > 0
    assert "".join(chunk.content for chunk in chat.stream(COUNTING)) == whole.content
    assert [reply.content for reply in chat.batch([COUNTING] * 3)] == [whole.content] * 3
    assert asyncio.run(chat.ainvoke(COUNTING)).content == whole.content


def test_langchain_completes_and_uses_responses(served_smollm2: str):
    module = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    base: dict[str, Any] = {"base_url": f"{served_smollm2}/v1", "api_key": "none", "model": MODEL, "temperature": 0}
    assert module.OpenAI(**base, max_tokens=8).invoke("1, 2, 3, 4,").strip().startswith("5")
    chat: Any = module.ChatOpenAI(**base, max_tokens=16, use_responses_api=True)
    text = chat.invoke(COUNTING).text
    assert (text if isinstance(text, str) else text()) != ""
    assert any(chunk.text for chunk in chat.stream(COUNTING))


def test_llama_index_completes_chats_and_streams(served_smollm2: str):
    module = pytest.importorskip(
        "llama_index.llms.openai_like", reason="llama-index-llms-openai-like is not installed (100 MB)"
    )
    llm: Any = module.OpenAILike(
        api_base=f"{served_smollm2}/v1", api_key="none", model=MODEL, temperature=0, max_tokens=8, max_retries=0
    )
    whole = llm.complete("1, 2, 3, 4,").text
    assert whole.strip().startswith("5")
    assert "".join(part.delta or "" for part in llm.stream_complete("1, 2, 3, 4,")) == whole
    assert asyncio.run(llm.acomplete("1, 2, 3, 4,")).text == whole
    message_type = pytest.importorskip("llama_index.core.llms").ChatMessage
    chat = module.OpenAILike(
        api_base=f"{served_smollm2}/v1",
        api_key="none",
        model=MODEL,
        temperature=0,
        max_tokens=8,
        max_retries=0,
        is_chat_model=True,
    )
    messages = [message_type(role="user", content=COUNTING)]
    answer = chat.chat(messages).message.content
    assert answer
    assert "".join(part.delta or "" for part in chat.stream_chat(messages)) == answer


def test_litellm_chats_completes_and_streams(served_smollm2: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it asks the internet for prices
    litellm: Any = pytest.importorskip("litellm", reason="litellm is not installed (170 MB)")
    base: dict[str, Any] = {"api_base": f"{served_smollm2}/v1", "api_key": "none", "temperature": 0}
    request: dict[str, Any] = {**base, "model": f"openai/{MODEL}", "messages": [{"role": "user", "content": COUNTING}]}
    request["max_tokens"] = 12
    whole = litellm.completion(**request)
    assert whole.usage.completion_tokens > 0
    text = whole.choices[0].message.content
    chunks = list(litellm.completion(**request, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    assert asyncio.run(litellm.acompletion(**request)).choices[0].message.content == text
    completed = litellm.text_completion(
        **base, model=f"text-completion-openai/{MODEL}", prompt="1, 2, 3, 4,", max_tokens=8
    )
    assert completed.choices[0].text.strip().startswith("5")
    with pytest.raises(litellm.BadRequestError, match="response_format"):
        litellm.completion(**request, response_format={"type": "json_object"})


def test_litellm_uses_responses(served_smollm2: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    pytest.importorskip("mcp", reason="mcp, which litellm's responses need, is not installed")
    litellm: Any = pytest.importorskip("litellm", reason="litellm is not installed (170 MB)")
    base: dict[str, Any] = {"api_base": f"{served_smollm2}/v1", "api_key": "none", "temperature": 0}
    answered = litellm.responses(**base, model=f"openai/{MODEL}", input=COUNTING, max_output_tokens=16)
    assert answered.output[0].content[0].text
