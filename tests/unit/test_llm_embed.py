"""`embed` and `rank` of `LLM` and `AsyncLLM` over the scripted backend."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import pytest

from stoker import LLM, AsyncLLM, SamplingParams
from stoker.backends.scripted import ScriptedEmbedder
from stoker.core.embedding import Piece
from stoker.errors import BackendError, ContextLengthExceeded, EngineCrashed, InvalidInput, ModelNotLoaded

BOUND_S = 10.0


class Gate:
    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()


@pytest.fixture
def llm() -> Iterator[LLM]:
    with LLM("scripted", backend="scripted") as llm:
        yield llm


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Holds the passes of every scripted embedder."""
    gate = Gate()
    original = ScriptedEmbedder.embed

    def embed(self: ScriptedEmbedder, pieces: Sequence[Piece]) -> Any:
        gate.entered.set()
        assert gate.opened.wait(BOUND_S)
        return original(self, pieces)

    monkeypatch.setattr(ScriptedEmbedder, "embed", embed)
    yield gate
    gate.opened.set()


def test_one_and_many(llm: LLM):
    one, many = llm.embed("a"), llm.embed(["b", [1, 2], "a"])
    assert (one.shape, many.shape, one.dtype) == ((8,), (3, 8), np.float32)
    np.testing.assert_array_equal(many[2], one)
    np.testing.assert_allclose(np.linalg.norm(many, axis=1), 1, rtol=1e-6)
    one[0] = 5  # it is the caller's own
    assert llm.embed("a", dimensions=2).shape == (2,)
    np.testing.assert_array_equal(llm.embed("a", dimensions=cast("Any", np.int8(2))), llm.embed("a", dimensions=2))


def test_what_cannot_be_done_is_refused(llm: LLM):
    with pytest.raises(ContextLengthExceeded):
        llm.embed("a" * 1000)
    assert llm.embed("a" * 1000, truncate=True).shape == (8,)
    with pytest.raises(InvalidInput, match="not a reranking model"):
        llm.rank("q", ["a"])
    for query, documents in ((5, ["a"]), ("q", "a"), ("q", 5), ("q", [5]), ("q", [[1.5]]), ("q", np.array(5))):
        with pytest.raises(InvalidInput, match="must be"):
            llm.rank(cast("Any", query), cast("Any", documents))
    with pytest.raises(InvalidInput, match="empty"):
        llm.embed([])
    with pytest.raises(InvalidInput, match="`dimensions` must be a whole number, not '3'"):
        llm.embed("a", dimensions=cast("Any", "3"))
    assert llm.embed("a").shape == (8,)


def test_pooling_is_an_option():
    with LLM("scripted", backend="scripted", pooling="last") as last, LLM("scripted", backend="scripted") as mean:
        assert last.card.embedding is not None
        assert last.card.embedding.pooling == "last"
        assert not np.array_equal(last.embed("abc"), mean.embed("abc"))


def test_failure_reaches_the_caller_and_no_other(llm: LLM, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: Any) -> Any:
        raise BackendError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(ScriptedEmbedder, "embed", fail)
        with pytest.raises(BackendError, match="no memory"):
            llm.embed("a")
    assert llm.embed("a").shape == (8,)
    assert llm.generate("a", SamplingParams(temperature=0, max_tokens=2)).usage.completion_tokens == 2


def test_death_of_the_engine_reaches_the_caller(llm: LLM, monkeypatch: pytest.MonkeyPatch):
    def die(*_: Any) -> Any:
        raise RuntimeError("a bug")

    monkeypatch.setattr(ScriptedEmbedder, "embed", die)
    with pytest.raises(EngineCrashed):
        llm.embed("a")
    with pytest.raises(ModelNotLoaded):
        llm.embed("a")


def test_closed_while_it_is_computed(gate: Gate):
    llm = LLM("scripted", backend="scripted")
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            llm.embed(["a", "b"])
        except ModelNotLoaded as error:
            errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    assert gate.entered.wait(BOUND_S)
    closing = threading.Thread(target=llm.close)
    closing.start()
    gate.opened.set()
    closing.join(BOUND_S)
    thread.join(BOUND_S)
    assert not thread.is_alive()
    with pytest.raises(ModelNotLoaded):
        llm.embed("a")


def test_async_beside_an_answer():
    async def ask() -> None:
        async with AsyncLLM("scripted", backend="scripted") as llm:
            generating = llm.generate("a", SamplingParams(temperature=0, max_tokens=4))
            rows, one, answer = await asyncio.gather(llm.embed(["a", "b"]), llm.embed("b"), generating)
            np.testing.assert_array_equal(rows[1], one)
            assert answer.usage.completion_tokens == 4
            with pytest.raises(InvalidInput):
                await llm.rank("q", ["a"])

    asyncio.run(asyncio.wait_for(ask(), BOUND_S))


def test_cancelled_task_takes_its_request_back(gate: Gate):
    async def ask() -> None:
        async with AsyncLLM("scripted", backend="scripted") as llm:
            task = asyncio.ensure_future(llm.embed(["a" * 100] * 20))
            await asyncio.to_thread(gate.entered.wait, BOUND_S)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            session = await llm._session()
            assert not session._questions
            assert not session._worker._live
            gate.opened.set()
            assert (await llm.embed("a")).shape == (8,)

    asyncio.run(asyncio.wait_for(ask(), BOUND_S))
