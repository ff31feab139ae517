"""A replica behind a connection does what one in this process does, and its loss ends what it worked on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import pytest

from stoker.cluster import remote as remotes
from stoker.cluster import session as sessions
from stoker.cluster.remote import RemoteEngine
from stoker.core.params import SamplingParams
from stoker.engine.config import AdapterSpec
from stoker.engine.protocol import Accepted, Output, Pause, Resume, Submit, Usage
from stoker.engine.question_messages import ChangeAdapters, Embed, EraseSlots, ListSlots, Question, SaveSlot, Tokenize
from stoker.engine.stats import EngineStats
from stoker.errors import EngineCrashed, ModelNotLoaded, Overloaded, UnsupportedParameter
from tests.unit.cluster.memory_link import MemoryLink
from tests.unit.runtime.fake_replica import CARD, FakeReplica
from tests.waiting import BOUND_S, run, until

SUBMIT = Submit("r", "hello", SamplingParams(max_tokens=5))


class Pair:
    """A replica, and a front that is connected to it."""

    def __init__(self, silence_s: float = BOUND_S) -> None:
        self.fake = FakeReplica(0, None)
        self.fake.state = "ready"
        self.link = MemoryLink(self.fake)
        self.remote = RemoteEngine(self.link, silence_s=silence_s)

    async def __aenter__(self) -> Pair:
        await self.remote.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.remote.close()
        await until(lambda: not self.fake.open)


async def begun(pair: Pair) -> AsyncGenerator[Accepted | Output, None]:
    """A request of which something was read."""
    events = pair.remote.generate(SUBMIT)
    assert isinstance(await anext(events), Accepted)
    await until(lambda: "r" in pair.fake.open)
    pair.fake.say("r", "x")
    assert isinstance(await anext(events), Output)
    return events


def test_answer_arrives_as_it_was_made():
    async def test() -> None:
        async with Pair() as pair:
            events = await begun(pair)
            pair.fake.say("r", "a")
            pair.fake.say("r", "b", "stop")
            rest = [event async for event in events]
            assert "".join(event.text for event in rest if isinstance(event, Output)) == "ab"
            assert pair.fake.submits == [SUBMIT]
            assert (pair.remote.card, pair.remote.node) == (CARD, "10.0.0.1")

    run(test())


def test_refusal_arrives_with_its_code_and_fields():
    async def test() -> None:
        async with Pair() as pair:
            pair.fake.refuses = Overloaded("full", retry_after_s=7.0)
            with pytest.raises(Overloaded, match="full") as caught:
                await anext(pair.remote.generate(SUBMIT))
            assert caught.value.fields == {"retry_after_s": 7.0}

    run(test())


def test_who_leaves_frees_what_the_replica_holds():
    async def test() -> None:
        async with Pair() as pair:
            events = await begun(pair)
            await events.aclose()
            await until(lambda: not pair.fake.open)
            assert pair.link.session is not None
            await until(lambda: pair.link.session is not None and pair.link.session.num_open == 0)

    run(test())


def test_id_that_was_aborted_can_be_used_again_at_once():
    async def test() -> None:
        async with Pair() as pair:
            events = await begun(pair)
            await events.aclose()
            again = await begun(pair)
            await again.aclose()
            assert len(pair.fake.submits) == 2

    run(test())


def test_slow_reader_pauses_the_replica_and_resumes_it():
    async def test() -> None:
        async with Pair() as pair:
            events = await begun(pair)
            long = "x" * 100_000
            pair.fake.say("r", long)
            await until(lambda: any(isinstance(order, Pause) for order in pair.link.orders))
            taken = pair.fake.open["r"]
            await until(taken.empty)
            for _ in range(7):
                pair.fake.say("r", long)
            await asyncio.sleep(0.05)  # it could go on, if it were not paused
            assert taken.qsize() >= 6, "nothing more is taken from the engine"
            pair.fake.say("r", "", "stop")
            got = [event async for event in events]
            assert sum(len(event.text) for event in got if isinstance(event, Output)) == 8 * len(long)
            assert any(isinstance(order, Resume) for order in pair.link.orders)

    run(test())


def test_requests_of_a_replica_that_is_killed_end_with_an_error():
    async def test() -> None:
        async with Pair() as pair:
            events = await begun(pair)
            asked = asyncio.ensure_future(pair.remote.ask(Embed(inputs=["x"])))
            pair.link.break_off()
            with pytest.raises(EngineCrashed, match="was killed"):
                await anext(events)
            await asyncio.wait([asked])
            assert pair.remote.is_lost
            assert not pair.remote.health().is_ready
            with pytest.raises(ModelNotLoaded):
                await anext(pair.remote.generate(SUBMIT))

    run(test())


def test_replica_that_falls_silent_is_lost(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sessions, "BEAT_S", 0.01)

    async def test() -> None:
        async with Pair(silence_s=0.3) as pair:
            events = await begun(pair)
            pair.link.is_frozen = True
            with pytest.raises(EngineCrashed, match="said nothing"):
                await anext(events)

    run(test())


def test_orders_may_take_as_long_as_their_parts_arrive(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sessions, "BEAT_S", 0.01)

    async def test() -> None:
        async with Pair(silence_s=0.4) as pair:

            async def delay(on_part: Callable[[], None]) -> None:
                for _ in range(remotes._STEPS):
                    wanted = pair.remote._steps_told + 2
                    await until(lambda wanted=wanted: pair.remote._steps_told >= wanted)
                    on_part()

            monkeypatch.setattr(pair.link, "delay", delay)
            events = pair.remote.generate(SUBMIT)
            assert isinstance(await anext(events), Accepted)
            await events.aclose()

    run(test())


def test_replica_whose_reports_cannot_be_understood_is_lost_at_once(caplog: pytest.LogCaptureFixture):
    async def test() -> None:
        async with Pair() as pair:
            events = await begun(pair)
            pair.link.break_off(ValueError("of another version"))
            with pytest.raises(EngineCrashed, match="ValueError"):
                await anext(events)
            assert pair.remote.is_lost

    run(test())
    assert "of another version" in caplog.text


def test_front_that_falls_silent_loses_what_it_had_open(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sessions, "BEAT_S", 0.01)
    monkeypatch.setattr(sessions, "PATIENCE_S", 0.1)

    async def test() -> None:
        async with Pair() as pair:
            events = await begun(pair)
            await until(lambda: not pair.fake.open)
            with pytest.raises(EngineCrashed):
                await anext(events)

    run(test())


def test_pause_of_the_machine_is_no_silence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sessions, "BEAT_S", 0.01)
    monkeypatch.setattr(sessions, "PATIENCE_S", 0.4)
    monkeypatch.setattr(remotes, "SIGN_EVERY_S", 0.01)

    async def test() -> None:
        async with Pair(silence_s=0.4) as pair:
            events = await begun(pair)
            num_orders = pair.link.num_told
            time.sleep(1.0)  # noqa: ASYNC251 - nothing runs meanwhile, on either side
            await until(lambda: pair.link.num_told > num_orders + 5)
            pair.fake.say("r", "y", "stop")
            assert [event.text async for event in events if isinstance(event, Output)] == ["y"]
            assert not pair.remote.is_lost

    run(test())


def test_health_is_that_of_the_engine_behind_the_replica(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sessions, "BEAT_S", 0.01)

    async def test() -> None:
        async with Pair() as pair:
            pair.fake.beat = EngineStats(1, 2, 3, 4, 5, 6, 0.0)
            pair.fake.num_restarts = 2
            await until(lambda: pair.remote.health().heartbeat == pair.fake.beat)
            pair.fake.state = "restarting"
            await until(lambda: pair.remote.health().state == "restarting")
            health = pair.remote.health()
            assert (health.is_ready, health.num_restarts, health.node) == (False, 2, "10.0.0.1")

    run(test())


def test_questions_are_answered_and_refused():
    async def test() -> None:
        async with Pair() as pair:
            assert (await pair.remote.ask(Tokenize("hi"))).token_ids == [104, 105]
            assert len((await pair.remote.ask(ListSlots())).slots) == 4
            assert (await pair.remote.ask(EraseSlots())).num_tokens == 10
            assert (await pair.remote.ask(ChangeAdapters())).adapters == []
            load = ChangeAdapters(load=AdapterSpec(name="a", path="/a"))
            refused: list[Question[Any]] = [SaveSlot(slot=0, filename="x"), EraseSlots(slot=1), load]
            for question in refused:
                with pytest.raises(UnsupportedParameter, match="cluster"):
                    await pair.remote.ask(question)
            assert (pair.fake.filed, pair.fake.erased, pair.fake.adapters) == ([], [None], {})

    run(test())


def test_what_is_said_later_is_told_in_one_frame():
    """Frames cost more than what is in them: whatever came while one was on its way shares the next."""

    async def test() -> None:
        fake = FakeReplica(0, None)
        fake.state = "ready"
        one = sessions.Session(fake, "")
        one.obey([Submit(name, "p", SamplingParams()) for name in "abc"])
        async with aclosing(one.frames()) as frames:
            await until(lambda: len(fake.open) == 3)
            for name in "abc":
                fake.open[name].put_nowait(Output(name, "x", [1], Usage(1, 1, 0), finish_reason="stop"))
            await until(lambda: one.num_open == 0)
            frame = await anext(frames)
            assert [report.request_id for report in frame if isinstance(report, Output)] == ["a", "b", "c"]

    run(test())
