"""Streams of the library whose readers are slow, stop, or take turns: their requests pause, and nothing is lost."""

from __future__ import annotations

import gc
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager

import pytest

from stoker import LLM, AsyncLLM, AsyncTextStream, EngineConfig, SamplingParams, TextStream
from stoker.engine.stats import EngineStats
from tests.waiting import run, until, wait_for

LENGTH = 2200
"""More than twice `MAX_AHEAD`: the first piece that is read may be all that was unread."""
LONG = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)
SHORT = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
MAX_AHEAD = 1000
"""Tokens of one byte that fit into what may be unread, with room to spare."""


def config(max_queue: int = 8) -> EngineConfig:
    return EngineConfig(model="scripted", backend="scripted", parallel=1, max_queue=max_queue, ctx_size=4096)


@contextmanager
def one_place(max_queue: int = 8) -> Generator[LLM]:
    with LLM(config(max_queue)) as llm:
        yield llm


@asynccontextmanager
async def one_async_place(max_queue: int = 8) -> AsyncGenerator[AsyncLLM]:
    async with AsyncLLM(config(max_queue)) as llm:
        yield llm


def num_written(stream: TextStream | AsyncTextStream) -> int:
    """Tokens that the model has written for it, read or not."""
    return len(stream._answer._token_ids)


def paused(llm: LLM, count: int) -> EngineStats:
    return wait_for(llm.metrics, lambda stats: stats.num_paused == count)


def test_a_stream_that_is_not_read_is_paused_and_goes_on_when_it_is_read() -> None:
    with one_place() as llm:
        whole = llm.generate("x", LONG)
        with llm.stream("x", LONG) as stream:
            paused(llm, 1)
            ahead = num_written(stream)
            assert 0 < ahead < MAX_AHEAD
            # The only slot is free for others, and however long that takes, nothing more is computed for the reader.
            llm.generate(["a", "b"], SHORT)
            assert num_written(stream) == ahead
            assert "".join(stream) == whole.text
        assert stream.completion.token_ids == whole.token_ids
        assert llm.metrics().num_paused == 0


@pytest.mark.slow
def test_streams_that_one_thread_reads_one_after_the_other_all_end() -> None:
    with one_place() as llm:
        prompts = ["a", "b"]
        texts = [answer.text for answer in llm.generate(prompts, LONG)]
        streams = [llm.stream(prompt, LONG) for prompt in prompts]
        assert ["".join(stream) for stream in reversed(streams)] == texts[::-1]
        streams = [llm.stream(prompt, LONG) for prompt in prompts]
        found = [""] * len(streams)
        for index in [0, 1] * LENGTH:
            found[index] += next(streams[index], "")
        assert found == texts


def test_a_stream_that_is_only_looked_at_ends_too() -> None:
    with one_place() as llm, llm.stream("x", LONG) as stream:
        done = wait_for(lambda: stream.completion, lambda completion: completion.finish_reason != "cancelled")
        assert done.usage.completion_tokens == LENGTH


def test_a_paused_stream_without_references_frees_its_place() -> None:
    with one_place(max_queue=0) as llm:
        for _ in range(3):
            stream = llm.stream("x", LONG)
            paused(llm, 1)
            del stream
            gc.collect()
            assert llm.generate("y", SHORT).usage.completion_tokens == 3
            paused(llm, 0)


def test_a_thread_that_holds_every_place_with_unread_streams_still_gets_one() -> None:
    with one_place(max_queue=0) as llm:
        stream = llm.stream("x", LONG)
        paused(llm, 1)
        assert llm.generate("y", SHORT).usage.completion_tokens == 3
        assert len("".join(stream)) > 0
        assert stream.completion.usage.completion_tokens == LENGTH, "it went on to its end for the sake of the other"


def test_closing_a_paused_stream_ends_its_request() -> None:
    with one_place(max_queue=0) as llm:
        stream = llm.stream("x", LONG)
        num_paused = paused(llm, 1).num_paused
        stream.close()
        assert (num_paused, paused(llm, 0).num_running) == (1, 0)


def test_an_async_stream_that_is_not_read_is_paused_and_goes_on_when_it_is_read() -> None:
    async def test() -> None:
        async with one_async_place() as llm:
            whole = await llm.generate("x", LONG)
            stream = llm.stream("x", LONG)
            text = await anext(stream)
            await until(lambda: stream._answer.is_paused)
            ahead = num_written(stream)
            assert 0 < ahead - len(text) < MAX_AHEAD
            await llm.generate("a", SHORT)
            assert num_written(stream) == ahead
            assert text + "".join([piece async for piece in stream]) == whole.text

    run(test())


def test_async_places_that_unread_streams_hold_are_freed() -> None:
    async def test() -> None:
        async with one_async_place(max_queue=0) as llm:
            stream = llm.stream("x", LONG)
            await anext(stream)
            await until(lambda: stream._answer.is_paused)
            assert (await llm.generate("y", SHORT)).usage.completion_tokens == 3
            assert [piece async for piece in stream]
            assert stream.completion.usage.completion_tokens == LENGTH
            await until(lambda: stream._answer.is_ended)

    run(test())


def test_a_stream_says_how_much_of_its_prompt_is_computed() -> None:
    with one_place() as llm, llm.stream("x" * 3000, SHORT) as stream:
        assert "".join(stream)
        num_prompt = stream.completion.usage.prompt_tokens
        assert num_prompt >= 3000
        assert stream.prompt_progress == (num_prompt, num_prompt)
