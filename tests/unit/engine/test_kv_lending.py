"""An engine whose pool lends: it is told a limit, keeps to it, gives memory back, and waits while the rest is lent."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from stoker.backends.scripted import ScriptedBackend, reply_with, scripted_info
from stoker.core.batch import Batch
from stoker.core.scheduler import SchedulerConfig
from stoker.engine.engine import Engine
from stoker.engine.question_messages import KVShare, ShareKV
from stoker.errors import BackendError, UnsupportedParameter
from tests.harness import loaded
from tests.unit.engine.test_engine import GREEDY, add, make_engine, run, text

SIZE = 10
INFO = replace(scripted_info(kv_tokens=400, context_size=400), most_kv_tokens=1000, kv_bytes_per_token=SIZE)


class Lender(ScriptedBackend):
    """It counts how often it gives memory back, and what it holds then."""

    held_then: list[int]

    def give_back_kv(self) -> None:
        self.held_then.append(self.num_cells)


def lender(before_forward: object = None) -> tuple[Engine, Lender]:
    backend = Lender(INFO, next_token=reply_with("word " * 40), before_forward=before_forward)  # type: ignore[arg-type]
    backend.held_then = []
    config = SchedulerConfig(max_running=4, max_waiting=8)
    return Engine(loaded(backend, defaults=GREEDY, lending_port=backend), config), backend


def share(engine: Engine, limit: int | None = None) -> KVShare:
    answer = engine.answer(ShareKV(limit=None if limit is None else limit * SIZE, question_id="q"))
    assert isinstance(answer, KVShare)
    engine.check_integrity()
    return answer


def test_limits_are_in_bytes_and_are_kept() -> None:
    engine, backend = lender()
    assert share(engine) == KVShare(
        "q", limit=1000, share=4000, least=1000, most=10_000, held=0, needed=0, is_short=False
    )
    assert share(engine, 5000).limit == 10_000
    for i in range(3):
        add(engine, f"{i}", f"{i}" * 200, max_tokens=4)
        run(engine)
    assert share(engine).held > 6000
    assert backend.held_then == [], "nothing was taken from it"
    answer = share(engine, 400)
    assert answer.held <= answer.limit == 4000
    assert backend.held_then == [answer.held // SIZE], "what has left the pool has left the backend"
    assert not answer.is_short
    stats = engine.stats()
    assert (stats.kv_share_bytes, stats.kv_capacity_bytes) == (4000, 4000)


def test_a_request_waits_while_its_share_is_lent_and_its_answer_is_the_same() -> None:
    prompt = "a long question, " * 15
    usual = make_engine(reply_with("word " * 40))
    add(usual, "r", prompt, max_tokens=50)
    expected = text(run(usual)["r"])
    engine, _ = lender()
    add(engine, "r", prompt, max_tokens=50)
    assert engine.step() == []
    assert engine.is_waiting
    assert share(engine).needed > 250 * SIZE
    share(engine, 400)
    assert text(run(engine)["r"]) == expected


def test_a_request_that_is_preempted_for_a_loan_goes_on_where_it_was() -> None:
    engine, _ = lender()
    share(engine, 1000)
    for i in range(4):
        add(engine, f"{i}", f"{i}" * 120, max_tokens=60)
    texts = {f"{i}": "" for i in range(4)}

    def step() -> None:
        for event in engine.step():
            texts[event.request_id] += event.text  # type: ignore[union-attr]

    while engine.stats().num_running < 4 or min(map(len, texts.values())) < 10:
        step()
    assert share(engine, 300).held <= 300 * SIZE
    assert engine.stats().num_running < 4
    share(engine, 400)
    while engine.has_work:
        step()
    alone, _ = lender()
    share(alone, 400)
    add(alone, "r", "0" * 120, max_tokens=60)
    assert set(texts.values()) == {text(run(alone)["r"])}


def test_a_pool_of_a_fixed_size_is_refused() -> None:
    engine = make_engine()
    with pytest.raises(UnsupportedParameter, match="fixed size"):
        engine.answer(ShareKV())
    assert engine.stats().kv_share_bytes == 0


def test_a_backend_that_fails_meanwhile_leaves_the_engine_in_order() -> None:
    fails = False

    def before_forward(batch: Batch) -> None:
        if fails:
            raise BackendError("not now")

    engine, _ = lender(before_forward)
    share(engine, 1000)
    for i in range(3):
        add(engine, f"{i}", f"{i}" * 200, max_tokens=4)
        run(engine)
    fails = True
    with pytest.raises(BackendError):
        share(engine, 400)
    fails = False
    assert share(engine).limit == 4000
    add(engine, "r", "0" * 200, max_tokens=4)
    assert text(run(engine)["r"])


def test_the_messages_cross_the_border_of_processes() -> None:
    question = ShareKV(limit=7, question_id="q")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(question), type=ShareKV) == question
