"""Embeddings beside answers: what they are, whom they make wait, and what becomes of them when something ends."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stoker.backends.scripted import (
    BOS,
    EOS,
    ScriptedBackend,
    ScriptedEmbedder,
    ScriptedTokenizer,
    reply_with,
    scripted_embedding_info,
    scripted_info,
)
from stoker.core.embedding import EmbeddingInfo, Piece, Pooling
from stoker.core.params import SamplingParams
from stoker.core.scheduler import SchedulerConfig
from stoker.engine import embeddings
from stoker.engine.embeddings import embedding_token_ids, normalised
from stoker.engine.engine import Engine
from stoker.engine.protocol import Abort, Command, Event, Failed, Output, Submit
from stoker.engine.question_messages import Embed, Embedded, Tokenize, Unanswered
from stoker.engine.questions import Questions
from stoker.engine.worker import EngineWorker
from stoker.errors import (
    BackendError,
    ContextLengthExceeded,
    EngineCrashed,
    InvalidInput,
    ModelNotLoaded,
    Overloaded,
    Timeout,
)
from tests.harness import loaded
from tests.unit.engine.test_client import answer, started
from tests.unit.engine.test_engine import Clock, add
from tests.unit.engine.test_worker import Sink
from tests.waiting import BOUND_S, run, until

RANK = scripted_embedding_info(pooling=Pooling.RANK)
LONG = "a long text " * 30


def make_engine(
    info: EmbeddingInfo | None = None,
    *,
    before_embed: Callable[[Sequence[Piece]], None] | None = None,
    clock: Callable[[], float] | None = None,
    can_generate: bool = True,
) -> Engine:
    sizes = replace(scripted_info(), can_generate=can_generate)
    backend = ScriptedBackend(sizes, next_token=reply_with("an answer"))
    embedder = ScriptedEmbedder(info, before_embed=before_embed)
    model = loaded(backend, defaults=SamplingParams(temperature=0), embedder=embedder)
    return Engine(model, SchedulerConfig(max_running=4, max_waiting=8), clock=clock or Clock())


def embed(engine: Engine, *inputs: str | list[int], question_id: str = "e", **fields: Any) -> None:
    engine.add_embedding(engine.admit_embedding(Embed(list(inputs), question_id=question_id, **fields)))


def drain(engine: Engine) -> list[Event]:
    events: list[Event] = []
    while engine.has_work:
        events += engine.step()
        engine.check_integrity()
    return events


def result(events: Sequence[Event], question_id: str = "e") -> Embedded:
    (found,) = [event for event in events if isinstance(event, Embedded) and event.question_id == question_id]
    return found


def rows(engine: Engine, *inputs: str | list[int], **fields: Any) -> Any:
    embed(engine, *inputs, **fields)
    return result(drain(engine)).rows()


def text_of(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Output))


def test_order_is_kept_for_a_thousand_inputs_of_all_lengths():
    inputs = [f"{index} " * (1 + index * 7 % 50) for index in range(1000)]
    found = rows(make_engine(), *inputs)
    assert found.shape == (1000, 8)
    for index in range(0, 1000, 27):
        np.testing.assert_allclose(found[index], rows(make_engine(), inputs[index])[0], atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-6)


def test_result_does_not_depend_on_how_it_is_cut_nor_on_answers_beside_it():
    alone = np.concatenate([rows(make_engine(), LONG), rows(make_engine(), "short")])
    clock = Clock()

    def work(pieces: Sequence[Piece]) -> None:
        clock.now += 0.01 * sum(len(piece.entries) for piece in pieces)

    busy = make_engine(before_embed=work, clock=clock)
    add(busy, "r", "Q:", max_tokens=9)
    embed(busy, LONG, "short")
    events = drain(busy)
    np.testing.assert_allclose(result(events).rows(), alone, atol=1e-6)
    assert text_of(events) == "an answer"


def test_tokens_get_what_the_model_wants_around_them_and_ids_are_taken_as_they_are():
    info, tokenizer = scripted_embedding_info(), ScriptedTokenizer()
    assert embedding_token_ids(tokenizer, info, Embed(["ab", [7, 8]])) == [[BOS, *b"ab", EOS], [7, 8]]
    pair = embedding_token_ids(tokenizer, RANK, Embed(["d"], query="q"))
    assert pair == [[BOS, *b"q", EOS, BOS, *b"d", EOS]]


def test_pair_is_written_as_the_models_template_says():
    info = EmbeddingInfo(
        pooling=Pooling.RANK,
        size=1,
        max_tokens=64,
        max_batch_tokens=64,
        num_slots=4,
        can_split=True,
        rank_template="Q {query} D {document}!",
    )
    (ids,) = embedding_token_ids(ScriptedTokenizer(), info, Embed(["{query}"], query="{document}"))
    assert ids == [BOS, *b"Q {document} D {query}!"]


def test_usage_counts_the_tokens_of_each_input():
    engine = make_engine()
    embed(engine, "ab", [7, 8, 9])
    assert result(drain(engine)).num_tokens == [4, 3]


def test_too_long_is_refused_or_cut_with_its_ending_kept():
    engine = make_engine(scripted_embedding_info(max_tokens=8))
    with pytest.raises(ContextLengthExceeded) as refusal:
        embed(engine, "fits", "much too long")
    assert "`input[1]`" in refusal.value.message
    assert refusal.value.fields["context_size"] == 8
    cut = rows(engine, "much too long", truncates=True)
    np.testing.assert_array_equal(cut, rows(engine, [BOS, *b"much t", EOS]))
    np.testing.assert_array_equal(rows(engine, list(range(20)), truncates=True), rows(engine, list(range(8))))


def test_dimensions_are_cut_before_they_are_normalised():
    engine = make_engine()
    whole, part = rows(engine, "a", norm=-1), rows(engine, "a", dimensions=3)
    np.testing.assert_allclose(part, whole[:, :3] / np.linalg.norm(whole[:, :3]), rtol=1e-6)
    with pytest.raises(InvalidInput, match="between 1 and 8"):
        embed(engine, "a", dimensions=9)


def test_norms():
    values = np.array([[3.0, -4.0], [0.0, 0.0]], dtype=np.float32)
    assert normalised(values, -1).tolist() == values.tolist()
    np.testing.assert_allclose(normalised(values, 2), [[0.6, -0.8], [0, 0]], rtol=1e-6)
    np.testing.assert_allclose(normalised(values, 1), [[3 / 7, -4 / 7], [0, 0]], rtol=1e-6)
    np.testing.assert_allclose(normalised(values, 0), [[24570, -32760], [0, 0]], rtol=1e-6)
    np.testing.assert_allclose(normalised(values, 3)[0], values[0] / 91 ** (1 / 3), rtol=1e-6)


def test_scores_are_the_classifiers_and_relevance_lies_between_0_and_1():
    engine = make_engine(RANK)
    embed(engine, "b", "bcd", query="a")
    found = result(drain(engine))
    assert found.rows()[:, 0].tolist() == [4.0, 6.0], "different entries of each pair, BOS and EOS among them"
    assert found.relevance() == pytest.approx([1 / (1 + np.exp(-4)), 1 / (1 + np.exp(-6))])


@pytest.mark.parametrize(
    ("info", "fields", "says"),
    [
        (None, {"query": "q"}, "not a reranking model"),
        (RANK, {}, "without embeddings"),
        (None, {"inputs": []}, "nothing to compute"),
        (None, {"inputs": [[]]}, "no tokens"),
        (None, {"inputs": [[5, 10**6]]}, "outside the vocabulary"),
        (None, {"inputs": ["\ud800"]}, "not valid Unicode"),
    ],
)
def test_refused_at_the_door(info: EmbeddingInfo | None, fields: dict[str, Any], says: str):
    given: Any = {"inputs": ["a"], **fields}
    engine = make_engine(info)
    with pytest.raises(InvalidInput, match=says):
        engine.admit_embedding(Embed(**given))


def test_encoder_writes_no_text_and_warms_up_all_the_same():
    passes: list[Sequence[Piece]] = []
    engine = make_engine(before_embed=passes.append, can_generate=False)
    engine.warm_up()
    assert len(passes) == 1
    with pytest.raises(InvalidInput, match="does not generate text"):
        engine.admit(Submit("r", "hi", SamplingParams()))
    assert rows(engine, "a").shape == (1, 8)


def test_model_that_cannot_embed_says_so():
    backend = ScriptedBackend(scripted_info())
    engine = Engine(loaded(backend), SchedulerConfig(max_running=1))
    with pytest.raises(InvalidInput, match="cannot embed"):
        engine.admit_embedding(Embed(["a"]))


def test_streams_wait_for_embeddings_no_longer_than_a_step_may_take():
    """Every token costs 2 ms, a forward pass 10 ms: of the 200 ms of a step, 190 are left."""
    clock = Clock()
    sizes: list[int] = []

    def work(pieces: Sequence[Piece]) -> None:
        sizes.append(sum(len(piece.entries) for piece in pieces))
        clock.now += 0.002 * sizes[-1]

    backend = ScriptedBackend(scripted_info(), before_forward=lambda _: setattr(clock, "now", clock.now + 0.01))
    engine = Engine(
        loaded(backend, embedder=ScriptedEmbedder(before_embed=work)),
        SchedulerConfig(max_running=4, target_step_s=0.2, idle_step_s=1.0),
        clock=clock,
    )
    add(engine, "r", "Q:", temperature=0, ignore_eos=True, max_tokens=40)
    embed(engine, *[LONG] * 40)
    gaps: list[float] = []
    for _ in range(40):
        before = clock.now
        (output,) = [event for event in engine.step() if isinstance(event, Output)]
        assert output.token_ids, "a token in every step"
        gaps.append(clock.now - before)
    assert max(gaps) < 0.2001
    assert sum(sizes) / 40 > 50, "and embeddings go on"
    drain(engine)
    assert max(sizes) > 95, "with nobody to wait for, passes are larger"


def test_embeddings_go_on_although_streams_take_all_of_the_step():
    clock = Clock()
    sizes: list[int] = []

    def work(pieces: Sequence[Piece]) -> None:
        sizes.append(sum(len(piece.entries) for piece in pieces))
        clock.now += 0.001 * sizes[-1]

    backend = ScriptedBackend(scripted_info(), before_forward=lambda _: setattr(clock, "now", clock.now + 0.4))
    config = SchedulerConfig(max_running=4)
    embedder = ScriptedEmbedder(before_embed=work)
    engine = Engine(loaded(backend, embedder=embedder), config, clock=clock)
    add(engine, "r", "Q:", temperature=0, ignore_eos=True, max_tokens=10)
    embed(engine, *[LONG] * 10)
    for _ in range(10):
        engine.step()
    assert max(sizes) == 100, "a quarter of 0.4 s"
    assert min(sizes[1:]) >= 40


def test_aborted_in_the_middle_it_publishes_nothing():
    engine = make_engine(scripted_embedding_info(max_tokens=512, max_batch_tokens=32))
    embed(engine, LONG, "b", question_id="gone")
    embed(engine, LONG, question_id="stays")
    engine.step()
    engine.abort("gone")
    engine.abort("unknown")
    events = drain(engine)
    np.testing.assert_allclose(result(events, "stays").rows(), rows(make_engine(), LONG), atol=1e-6)
    assert len(events) == 1


def test_deadline():
    clock = Clock()
    engine = make_engine(scripted_embedding_info(max_batch_tokens=32), clock=clock)
    embed(engine, LONG, timeout_s=1.5)
    engine.step()
    clock.now = 2.0
    (event,) = drain(engine)
    assert isinstance(event, Unanswered)
    assert isinstance(event.error(), Timeout)


def test_failed_pass_ends_those_that_were_in_it_and_no_other():
    fails = [True]

    def fail(pieces: Sequence[Piece]) -> None:
        if fails.pop():
            fails.append(False)
            raise BackendError("no memory")
        fails.append(False)

    engine = make_engine(scripted_embedding_info(max_batch_tokens=32), before_embed=fail)
    add(engine, "r", "Q:", max_tokens=9)
    embed(engine, LONG, question_id="unlucky")
    embed(engine, "later" * 10, question_id="lucky")
    events = drain(engine)
    (failed,) = [event for event in events if isinstance(event, Unanswered)]
    assert (failed.question_id, type(failed.error())) == ("unlucky", BackendError)
    assert result(events, "lucky").rows().shape == (1, 8)
    assert text_of(events) == "an answer"


def test_numbers_that_are_none_are_an_error(monkeypatch: pytest.MonkeyPatch):
    engine = make_engine()
    monkeypatch.setattr(ScriptedEmbedder, "embed", lambda *_: np.full((1, 8), np.nan, dtype=np.float32))
    embed(engine, "a")
    (event,) = drain(engine)
    assert isinstance(event, Unanswered)
    assert isinstance(event.error(), BackendError)


def test_queue_is_bounded_in_tokens(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(embeddings, "MAX_QUEUED_TOKENS", 500)
    engine = make_engine()
    embed(engine, LONG, LONG, question_id="one")  # alone it may be larger
    with pytest.raises(Overloaded):
        embed(engine, "a", question_id="two")
    drain(engine)
    embed(engine, "a", question_id="two")


def test_places_are_shared_with_answers():
    sink, gate = Sink(), threading.Event()
    entered = threading.Event()

    def wait(pieces: Sequence[Piece]) -> None:
        entered.set()
        assert gate.wait(BOUND_S)

    worker = EngineWorker(make_engine(before_embed=wait), sink)
    try:
        worker.embed(Embed(["a"], question_id="e0"))
        assert entered.wait(BOUND_S)
        for index in range(1, 12):
            worker.embed(Embed(["a"], question_id=f"e{index}"))
        with pytest.raises(Overloaded):
            worker.submit(Submit("r", "Q:", SamplingParams()))
        with pytest.raises(InvalidInput, match="already in use"):
            worker.embed(Embed(["a"], question_id="e0"))
        worker.abort("e5")
        gate.set()
        sink.wait_for(lambda events: sum(isinstance(event, Embedded) for event in events) == 11)
        for index in range(12):
            worker.embed(Embed(["a"], question_id=f"f{index}"))
        sink.wait_for(lambda events: sum(isinstance(event, Embedded) for event in events) == 23)
        worker.submit(Submit("r", "Q:", SamplingParams(temperature=0)))
        sink.wait_for_end("r")
    finally:
        gate.set()
        worker.close()


def test_death_of_the_engine_is_told():
    def die(pieces: Sequence[Piece]) -> None:
        raise RuntimeError("a bug")

    sink = Sink()
    worker = EngineWorker(make_engine(before_embed=die), sink)
    worker.embed(Embed(["a"], question_id="e"))
    (event,) = sink.wait_for(bool)
    assert isinstance(event, Unanswered)
    assert isinstance(event.error(), EngineCrashed)
    assert not any(isinstance(event, Failed) for event in sink.events)
    with pytest.raises(ModelNotLoaded):
        worker.embed(Embed(["a"], question_id="f"))
    worker.close()


def test_client_embeds_in_its_child_beside_an_answer():
    async def test() -> None:
        async with started() as client:
            embedded, text = await asyncio.gather(client.ask(Embed(["a", "b", LONG])), answer(client))
            np.testing.assert_allclose(embedded.rows(), rows(make_engine(), "a", "b", LONG), atol=1e-6)
            assert text == "an answer."
            with pytest.raises(InvalidInput):
                await client.ask(Embed([[10**6]]))

    run(test())


def test_what_is_left_or_takes_too_long_is_taken_back():
    async def test() -> None:
        sent: list[Command] = []
        questions = Questions(sent.append)

        def asking(**fields: Any) -> asyncio.Future[Embedded]:
            return asyncio.ensure_future(questions.ask(Embed(["a"], **fields)))

        leaving = asking()
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait([leaving])
        assert sent == [Embed(["a"], question_id="q0"), Abort("q0")]
        with pytest.raises(Timeout):
            await asking(timeout_s=-2.0)  # the engine's own deadline has some grace
        assert sent[-1] == Abort("q1")
        answered = asking()
        await asyncio.sleep(0)
        questions.on_answer(Embedded("q2", b"", 0, []))
        await answered
        assert sent[-1] == Embed(["a"], question_id="q2"), "and nothing more"

    run(test())


def test_reader_who_leaves_takes_the_request_back():
    async def test() -> None:
        async with started(parallel=1, max_queue=0) as client:
            waiting = asyncio.ensure_future(client.ask(Embed(["a text " * 10_000] * 5)))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
            while True:  # until it has been tokenized, it keeps its place
                try:
                    assert (await client.ask(Embed(["a"]))).rows().shape == (1, 8)
                    return
                except Overloaded:
                    await asyncio.sleep(0.005)

    run(test())


def test_death_of_the_child_ends_it():
    async def test() -> None:
        async with started() as client:
            waiting = asyncio.ensure_future(client.ask(Embed(["HANG"])))
            await client.ask(Tokenize("after it"))
            assert client.child_pid is not None
            os.kill(client.child_pid, signal.SIGKILL)
            with pytest.raises(EngineCrashed):
                await waiting
            await until(lambda: client.health().is_ready)
            assert (await client.ask(Embed(["a"]))).rows().shape == (1, 8)

    run(test())
