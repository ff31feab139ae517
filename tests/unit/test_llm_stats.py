"""What `LLM` and `AsyncLLM` say of their engine, and how long an answer may take."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stoker import LLM, AsyncLLM
from stoker.errors import InvalidInput, ModelNotLoaded, Timeout


def test_the_numbers_of_the_engine() -> None:
    with LLM("Hello", backend="scripted", ctx_size=64) as llm:
        before = llm.stats()
        assert (before.num_running, before.num_waiting) == (0, 0)
        assert before.kv_capacity == llm.card.kv_tokens
        usage = llm.generate("Hi!").usage
    with LLM("Hello", backend="scripted", ctx_size=64) as llm:
        llm.generate("Hi!")
        llm.generate("Hi!")  # numbers of the first are published before the second is answered
        assert llm.stats().prompt_tokens >= usage.prompt_tokens
        assert llm.stats().num_steps > 0
    with pytest.raises(ModelNotLoaded, match="closed"):
        llm.stats()


def test_an_async_model_has_them_once_it_is_loaded() -> None:
    async def test() -> None:
        llm = AsyncLLM("Hello", backend="scripted")
        with pytest.raises(ModelNotLoaded, match="not loaded yet"):
            llm.stats()
        await llm.start()
        assert llm.stats().kv_capacity > 0
        await llm.close()
        with pytest.raises(ModelNotLoaded, match="closed"):
            llm.stats()

    asyncio.run(test())


def test_an_answer_has_only_so_long() -> None:
    with LLM("Hello", backend="scripted") as llm:
        with pytest.raises(Timeout, match="within 1e-09 s"):
            llm.generate("Hi!", timeout=1e-9)
        with pytest.raises(Timeout):
            llm.chat("Hi!", timeout=1e-9)
        assert llm.generate("Hi!", timeout=600).text == "Hello"


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), True, "5"])
def test_what_is_no_time_is_refused(timeout: Any) -> None:
    with LLM("Hello", backend="scripted") as llm, pytest.raises(InvalidInput, match="`timeout`"):
        llm.generate("Hi!", timeout=timeout)
