"""Several engines as one runtime: routing, crashes, scaling and draining, without a process."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from stoker.core.params import SamplingParams
from stoker.engine.protocol import Accepted, Output, Submit
from stoker.engine.question_messages import (
    AdapterChoice,
    Detokenize,
    Embed,
    EraseSlots,
    ListSlots,
    RestoreSlot,
    SaveSlot,
    Tokenize,
)
from stoker.errors import (
    EngineCrashed,
    InvalidInput,
    ModelNotLoaded,
    Overloaded,
    ResourceExhausted,
    Timeout,
)
from stoker.text.messages import Message
from tests.unit.runtime.fake_replica import CARD, NUM_SLOTS, Stage, play
from tests.unit.runtime.test_totals import beat
from tests.waiting import run, until

LONG = "a conversation that goes on for a while, and says the same again. " * 40
QUICK: dict[str, Any] = {"scale_hold_s": 10.0, "scale_cooldown_s": 60.0}


def test_the_first_loads_alone_and_the_others_become_like_it():
    stage = Stage(3)
    stage.loads_freely = False

    async def whole() -> None:
        with pytest.raises(ModelNotLoaded):
            _ = stage.runtime.card
        starting = asyncio.ensure_future(stage.runtime.start())
        await until(lambda: len(stage.made) == 1)
        assert not stage.runtime.health().is_ready
        with pytest.raises(ModelNotLoaded, match="loading"):
            await stage.runtime.ask(Tokenize("x"))
        stage.made[0].load_gate.set()
        await until(lambda: len(stage.made) == 3)
        assert [fake.first for fake in stage.made] == [None, CARD, CARD]
        assert stage.runtime.health().is_ready, "the first one can answer already"
        assert not starting.done()
        for fake in stage.made:
            fake.load_gate.set()
        card = await starting
        assert (card.parallel, card.max_queue, card.kv_tokens, card.context_size) == (6, 24, 12_000, 2048)
        assert await stage.runtime.start() == card
        assert len(stage.made) == 3
        assert stage.runtime.render_chat([Message(role="user", content="hi")]) == "hi"
        await stage.runtime.close()
        await stage.runtime.close()
        assert stage.runtime.health().state == "closed"
        assert not stage.alive

    run(whole())


@pytest.mark.parametrize("number", [0, 2])
def test_one_that_cannot_be_loaded_ends_the_start(number: int):
    stage = Stage(3)
    stage.loads_freely = False

    async def whole() -> None:
        starting = asyncio.ensure_future(stage.runtime.start())
        for count in range(1, number + 2):
            await until(lambda count=count: len(stage.made) >= count)
            if count == number + 1:
                stage.made[number].load_error = ResourceExhausted("too large")
            stage.made[count - 1].load_gate.set()
        with pytest.raises(ResourceExhausted):
            await starting
        with pytest.raises(ResourceExhausted):
            await stage.runtime.start()
        assert not stage.alive
        await stage.runtime.close()

    run(whole())


def test_closing_ends_a_start_and_what_runs():
    stage = Stage(1)
    stage.loads_freely = False

    async def whole() -> None:
        starting = asyncio.ensure_future(stage.runtime.start())
        await until(lambda: len(stage.made) == 1)
        await stage.runtime.close()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert not stage.alive

    run(whole())


def test_requests_spread_and_conversations_stay():
    stage = Stage(2)

    async def test() -> None:
        first, second = stage.ask("a", LONG), stage.ask("b", "quite another one. " * 40)
        await stage.held("a", "b")
        homes = {request_id: stage.holder(request_id) for request_id in "ab"}
        assert len({home.number for home in homes.values()}) == 2
        for request_id, home in homes.items():
            home.finish(request_id)
        assert await first == f"by {homes['a'].number}"
        await second
        for turn in range(4):
            asked = stage.ask(f"a{turn}", LONG + "more. " * turn)
            await stage.held(f"a{turn}")
            assert stage.holder(f"a{turn}") is homes["a"]
            homes["a"].finish(f"a{turn}")
            await asked

    play(stage, test())


def test_a_conversation_leaves_when_its_home_is_busy():
    stage = Stage(2)

    async def test() -> None:
        running = [stage.ask("a", LONG)]
        await stage.held("a")
        home = stage.holder("a")
        await stage.begun(home, "a")
        running.append(stage.ask("b", LONG))
        await stage.held("b")
        assert stage.holder("b") is home
        third = stage.ask("c", LONG)
        await stage.held("c")
        other = stage.holder("c")
        assert other is not home, "it would have to wait"
        for request_id in "ab":
            home.finish(request_id)
        other.finish("c")
        await asyncio.gather(*running, third)

    play(stage, test())


def test_cached_prompts_are_little_work_though_the_engine_counts_more_tokens_in_them():
    stage = Stage(2)

    async def test() -> None:
        for fake in stage.made:
            fake.prompt_tokens = len(LONG)  # four times as many as routing expects
        first = stage.ask("a", LONG)
        await stage.held("a")
        home = stage.holder("a")
        home.finish("a")
        await first
        turns = [stage.ask("b", LONG), stage.ask("c", LONG)]
        for request_id in "bc":
            await stage.held(request_id)
            assert stage.holder(request_id) is home
            home.finish(request_id)
        await asyncio.gather(*turns)

    play(stage, test())


def test_what_was_sent_to_a_process_that_died_is_forgotten():
    stage = Stage(2)

    async def test() -> None:
        first = stage.ask("a", LONG)
        await stage.held("a")
        home = stage.holder("a")
        home.finish("a")
        await first
        home.crash()
        home.recover()
        second = stage.ask("b", LONG)
        await stage.held("b")
        assert stage.holder("b") is not home, "it knows no more than the other, which has had less to do"
        stage.holder("b").finish("b")
        await second

    play(stage, test())


def test_prompts_that_are_not_cached_leave_no_trace():
    stage = Stage(2)

    async def test() -> None:
        homes: list[int] = []
        for request_id in "ab":
            asked = stage.ask(request_id, LONG, cache_prompt=False)
            await stage.held(request_id)
            homes.append(stage.holder(request_id).number)
            stage.holder(request_id).finish(request_id)
            await asked
        assert set(homes) == {0, 1}

    play(stage, test())


def test_a_prompt_with_another_adapter_is_another():
    stage = Stage(2)

    async def test() -> None:
        first = stage.ask("a", LONG, adapters=[AdapterChoice(name="sql")])
        await stage.held("a")
        others = [stage.ask("b", LONG, adapters=[AdapterChoice(name="fun")]), stage.ask("c", LONG)]
        await stage.held("b", "c")
        homes = {request_id: stage.holder(request_id) for request_id in "abc"}
        assert homes["a"] is not homes["b"]
        for request_id, home in homes.items():
            home.finish(request_id)
        await asyncio.gather(first, *others)

    play(stage, test())


def test_a_group_stays_together():
    stage = Stage(2)

    async def test() -> None:
        asked = [stage.ask(f"g{choice}", "short", group="g") for choice in range(2)]
        await stage.held("g0", "g1")
        home = stage.holder("g0")
        assert stage.holder("g1") is home
        for choice in range(2):
            home.finish(f"g{choice}")
        await asyncio.gather(*asked)

    play(stage, test())


def test_an_id_in_use_is_refused_wherever_it_is():
    stage = Stage(2)

    async def test() -> None:
        asked = stage.ask("a")
        await stage.held("a")
        with pytest.raises(InvalidInput, match="already in use"):
            await stage.ask("a")
        stage.holder("a").finish("a")
        await asked
        again = stage.ask("a")
        await stage.held("a")
        stage.holder("a").finish("a")
        await again

    play(stage, test())


def test_a_crash_ends_what_had_begun_and_moves_the_rest_once():
    stage = Stage(2)

    async def test() -> None:
        asked = {request_id: stage.ask(request_id, "hi", group="g") for request_id in "ab"}
        await stage.held("a", "b")
        dying = stage.holder("a")
        dying.say("a")
        await until(lambda: dying.open["a"].empty())
        dying.crash()
        with pytest.raises(EngineCrashed, match=f"replica {dying.number} died"):
            await asked["a"]
        await until(lambda: stage.is_held("b") and stage.holder("b") is not dying)
        assert stage.runtime.health().is_ready, "one of two is"
        assert stage.runtime.health().state == "ready"
        survivor = stage.holder("b")
        dying.recover()
        survivor.crash()
        with pytest.raises(EngineCrashed, match=f"replica {survivor.number} died"):
            await asked["b"]

    play(stage, test())


def test_without_another_it_waits_for_whoever_is_back_first():
    stage = Stage(1)

    async def test() -> None:
        asked = stage.ask("a")
        await stage.held("a")
        (only,) = stage.alive
        only.crash()
        await until(lambda: not only.open)
        only.recover()
        await stage.held("a")
        only.finish("a")
        assert await asked == "by 0"

    play(stage, test())


@pytest.mark.parametrize("timeout_s", [None, 2.0])
def test_it_waits_no_longer_than_it_may(timeout_s: float | None):
    stage = Stage(1)

    async def test() -> None:
        asked = stage.ask("a", timeout_s=timeout_s)
        await stage.held("a")
        stage.made[0].crash()
        await until(lambda: not stage.made[0].open)
        stage.now += 5.0 if timeout_s is None else 2.0
        with pytest.raises(EngineCrashed):
            await asked

    play(stage, test())


def test_the_second_attempt_has_the_time_that_is_left():
    stage = Stage(2)

    async def test() -> None:
        asked = stage.ask("a", timeout_s=30.0)
        await stage.held("a")
        dying = stage.holder("a")
        stage.now += 20.0
        dying.crash()
        await until(lambda: stage.is_held("a") and stage.holder("a") is not dying)
        assert stage.holder("a").submits[0].timeout_s == 10.0
        stage.holder("a").finish("a")
        await asked

    play(stage, test())


@pytest.mark.parametrize("error", [Overloaded("full", retry_after_s=3.0), ModelNotLoaded("not now")])
def test_what_one_refuses_another_is_asked_for(error: Any):
    stage = Stage(2)

    async def test() -> None:
        stage.made[0].refuses = error
        asked = stage.ask("a")
        await stage.held("a")
        assert stage.holder("a").number == 1
        stage.made[1].finish("a")
        await asked
        stage.made[1].refuses = error
        with pytest.raises(type(error)) as caught:
            await stage.ask("b")
        assert caught.value is error

    play(stage, test())


def test_other_errors_are_the_requests_own():
    stage = Stage(2)

    async def test() -> None:
        for fake in stage.made:
            fake.refuses = InvalidInput("no")
        with pytest.raises(InvalidInput):
            await stage.ask("a")
        for fake in stage.made:
            fake.refuses = None
        asked = stage.ask("b")
        await stage.held("b")
        stage.holder("b").open["b"].put_nowait(Timeout("late"))
        with pytest.raises(Timeout):
            await asked

    play(stage, test())


def test_leaving_frees_what_a_request_holds():
    stage = Stage(2)

    async def test() -> None:
        stream = stage.runtime.generate(Submit("a", "hi", SamplingParams()))
        assert isinstance(await anext(stream), Accepted)
        holder = stage.holder("a")
        holder.say("a")
        assert isinstance(await anext(stream), Output)
        await stream.aclose()
        assert not stage.is_held("a")
        asked = stage.ask("a")
        await stage.held("a")
        asked.cancel()
        await until(lambda: not stage.is_held("a"))

    play(stage, test())


def test_while_none_can_answer_the_nearest_one_says_so():
    stage = Stage(2)

    async def test() -> None:
        for fake in stage.made:
            fake.crash()
        health = stage.runtime.health()
        assert (health.is_ready, health.state) == (False, "restarting")
        for ask in (stage.ask("a"), stage.runtime.ask(Tokenize("x"))):
            with pytest.raises(ModelNotLoaded, match="is restarting") as caught:
                await ask
            assert caught.value.fields["retry_after_s"] == 7.0

    play(stage, test())


def test_questions_go_to_whoever_can_answer():
    stage = Stage(2)

    async def test() -> None:
        stage.made[0].crash()
        assert (await stage.runtime.ask(Tokenize("hi"))).question_id == "1"
        assert (await stage.runtime.ask(Detokenize([104, 105]))).text == "hi"
        stage.made[0].recover()
        stage.made[1].refuses = EngineCrashed("just now")
        assert {(await stage.runtime.ask(Tokenize("x"))).question_id for _ in range(3)} == {"0"}
        for _ in range(2):
            await stage.runtime.ask(Embed(inputs=["a text", [1, 2, 3]]))
        assert len(stage.made[0].embeds) == 2
        stage.made[0].refuses = InvalidInput("no")
        with pytest.raises(InvalidInput):
            await stage.runtime.ask(Embed(inputs=["x"]))

    play(stage, test())


def test_slots_have_one_numbering():
    stage = Stage(3)

    async def test() -> None:
        states = (await stage.runtime.ask(ListSlots())).slots
        assert [state.slot for state in states] == list(range(3 * NUM_SLOTS))
        assert [state.replica for state in states] == [0] * NUM_SLOTS + [1] * NUM_SLOTS + [2] * NUM_SLOTS
        stage.made[1].crash()
        assert [state.slot for state in (await stage.runtime.ask(ListSlots())).slots] == [0, 1, 2, 3, 8, 9, 10, 11]
        assert (await stage.runtime.ask(EraseSlots(2 * NUM_SLOTS + 3))).num_tokens == 10
        assert stage.made[2].erased == [3]
        assert (await stage.runtime.ask(EraseSlots())).num_tokens == 20
        for slot in (NUM_SLOTS, 3 * NUM_SLOTS, -1):
            with pytest.raises(InvalidInput):
                await stage.runtime.ask(EraseSlots(slot))

    play(stage, test())


def test_slots_are_saved_and_restored_under_that_numbering():
    stage = Stage(2)

    async def test() -> None:
        assert (await stage.runtime.ask(SaveSlot(NUM_SLOTS + 1, "a.bin"))).num_tokens == 1
        assert (await stage.runtime.ask(RestoreSlot(2, "a.bin"))).num_tokens == 0
        assert [fake.filed for fake in stage.made] == [[("restore", 2, "a.bin")], [("save", 1, "a.bin")]]
        with pytest.raises(InvalidInput, match="no slot 8"):
            await stage.runtime.ask(SaveSlot(2 * NUM_SLOTS, "a.bin"))

    play(stage, test())


def test_a_slot_can_be_erased_before_anybody_looked():
    stage = Stage(2)

    async def test() -> None:
        await stage.runtime.ask(EraseSlots(NUM_SLOTS))
        assert stage.made[1].erased == [0]

    play(stage, test())


def test_health_is_of_all_and_of_each():
    stage = Stage(2)

    async def test() -> None:
        stage.made[0].beat = beat(num_steps=5, kv_capacity=100, kv_used=10)
        stage.made[1].beat = beat(num_steps=6, kv_capacity=100)
        health = stage.runtime.health()
        assert health.heartbeat is not None
        assert (health.heartbeat.num_steps, health.heartbeat.kv_capacity) == (11, 200)
        stage.made[0].crash()
        stage.made[0].recover()
        health = stage.runtime.health()
        assert health.heartbeat is not None
        assert (health.heartbeat.num_steps, health.heartbeat.kv_used, health.num_restarts) == (11, 0, 1)
        assert {number: replica.num_restarts for number, replica in health.replicas.items()} == {0: 1, 1: 0}

    play(stage, test())


def test_a_queue_adds_replicas_in_the_background_and_quiet_takes_them_back():
    stage = Stage("1-2", scale_up_waiting=3, scale_down_open=2, **QUICK)

    async def test() -> None:
        asked = [stage.ask(f"r{number}", f"prompt {number}") for number in range(5)]
        await stage.held(*(f"r{number}" for number in range(5)))
        stage.later(0)
        stage.later(9)
        assert len(stage.made) == 1
        stage.loads_freely = False
        stage.later(1)
        await until(lambda: len(stage.made) == 2)
        assert stage.made[1].first == CARD
        assert stage.runtime.health().is_ready
        assert stage.runtime.card.parallel == 2, "it is not there yet"
        stage.made[1].load_gate.set()
        await until(lambda: stage.runtime.card.parallel == 4)
        late = stage.ask("late")
        await stage.held("late")
        assert stage.holder("late").number == 1
        for number in range(5):
            stage.made[0].finish(f"r{number}")
        await asyncio.gather(*asked)
        stage.later(50)
        stage.later(20)
        assert stage.runtime.health().replicas[0].state == "draining", "it has less to do than the other"
        other = stage.ask("other")
        await stage.held("other")
        assert stage.holder("other").number == 1, "it gets nothing new"
        stage.later(1)
        await until(lambda: stage.made[0].is_closed)
        assert list(stage.runtime.health().replicas) == [1]
        for request_id in ("late", "other"):
            stage.made[1].finish(request_id)
        assert await late == await other == "by 1"

    play(stage, test())


def test_who_waits_goes_to_a_replica_that_comes():
    stage = Stage("1-2", scale_up_waiting=1, scale_down_open=0, scale_hold_s=0)

    async def test() -> None:
        asked = [stage.ask(f"r{number}", LONG) for number in range(3)]
        asked += [stage.ask("urgent", LONG, priority=1), stage.ask("last", LONG)]
        await stage.begun(stage.made[0], "r0")
        stage.later(1)
        await until(lambda: stage.runtime.card.parallel == 4)
        stage.later(1)
        await until(lambda: len(stage.made[1].open) == 2)
        assert set(stage.made[0].open) == {"r0", "urgent", "last"}, "the next ones go, and nobody who is computed"
        stage.finish_all()
        assert await asyncio.gather(*asked) == ["by 0", "by 1", "by 1", "by 0", "by 0"]

    play(stage, test())


@pytest.fixture
def _nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What happens, happens by itself and at once."""
    monkeypatch.setattr("stoker.runtime.local_fleet.CHECK_S", 1000.0)


@pytest.mark.usefixtures("_nobody_looks")
def test_who_waits_goes_where_a_place_becomes_free():
    stage = Stage(2)

    async def test() -> None:
        asked = {f"r{number}": stage.ask(f"r{number}", f"prompt {number}") for number in range(8)}
        await stage.held(*asked)
        first, second = stage.made
        assert (len(first.open), len(second.open)) == (4, 4)
        waiting = list(second.open)[2]
        for request_id in list(first.open)[:3]:
            first.finish(request_id)
            await asked.pop(request_id)
        await until(lambda: waiting in first.open)
        assert len(first.open) == 2, "its own one runs, too"
        first.finish(waiting)
        await asked.pop(waiting)
        await until(lambda: len(first.open) == 2)
        assert len(second.open) == 2
        stage.finish_all()
        await asyncio.gather(*asked.values())

    play(stage, test())


@pytest.mark.usefixtures("_nobody_looks")
def test_a_free_place_is_for_the_most_urgent_of_all_who_wait():
    stage = Stage(3)

    async def test() -> None:
        asked = [stage.ask(f"r{number}", f"prompt {number}") for number in range(6)]
        for fake in stage.made:
            await until(lambda fake=fake: len(fake.open) == 2)
            await stage.begun(fake, *fake.open)
        asked.append(stage.ask("r6", "prompt 6"))
        asked.append(stage.ask("urgent", "prompt 7", priority=1))
        await stage.held("r6", "urgent")
        assert (stage.holder("r6").number, stage.holder("urgent").number) == (0, 1)
        stage.made[2].finish(next(iter(stage.made[2].open)))
        await until(lambda: len(stage.made[2].submits) == 3)
        assert stage.made[2].submits[-1].request_id == "urgent"
        stage.finish_all()
        await asyncio.gather(*asked)

    play(stage, test())


@pytest.mark.usefixtures("_nobody_looks")
def test_no_more_are_called_away_than_there_are_places():
    stage = Stage(2)

    async def test() -> None:
        asked = [stage.ask(f"r{number}", f"prompt {number}") for number in range(10)]
        await stage.held(*(f"r{number}" for number in range(10)))
        first, second = stage.made
        for request_id in list(first.open):
            first.finish(request_id)
        await until(lambda: len(first.open) == 2)
        assert (len(second.open), len(first.submits), len(second.submits)) == (3, 7, 5)
        stage.finish_all()
        await asyncio.gather(*asked)

    play(stage, test())


def test_nobody_is_sent_about_twice():
    stage = Stage(2)

    async def test() -> None:
        asked = [stage.ask(f"r{number}", f"prompt {number}") for number in range(5)]
        await stage.held(*(f"r{number}" for number in range(5)))
        crowded, other = sorted(stage.made, key=lambda fake: len(fake.open), reverse=True)
        moved = list(crowded.open)[2]
        for request_id in list(other.open):
            other.finish(request_id)
        await until(lambda: moved in other.open)
        more = [stage.ask(f"m{number}") for number in range(4)]
        await stage.held("m3")
        for request_id in list(crowded.open):
            crowded.finish(request_id)
        for _ in range(20):
            stage.runtime.check()
            await asyncio.sleep(0)
        assert moved in other.open
        stage.finish_all()
        await asyncio.gather(*asked, *more)

    play(stage, test())


def test_who_is_called_away_and_refused_waits_where_he_was():
    stage = Stage(2)

    async def test() -> None:
        asked = {f"r{number}": stage.ask(f"r{number}", f"prompt {number}") for number in range(5)}
        await stage.held(*asked)
        crowded, other = sorted(stage.made, key=lambda fake: len(fake.open), reverse=True)
        moved = list(crowded.open)[2]
        other.refuses = Overloaded("too many prompt tokens would wait", retry_after_s=1.0)
        other.finish(next(iter(other.open)))
        await until(lambda: len(crowded.submits) == 4)
        assert crowded.submits[-1].request_id == moved
        stage.finish_all()
        assert await asked[moved] == f"by {crowded.number}"
        await asyncio.gather(*asked.values())

    play(stage, test())


def test_who_is_not_accepted_yet_is_not_called_away():
    """As long as an engine reads a prompt, it knows its id, and would not take it back."""
    stage = Stage(2)

    async def test() -> None:
        asked = {f"r{number}": stage.ask(f"r{number}", f"prompt {number}") for number in range(4)}
        await stage.held(*asked)
        for fake in stage.made:
            fake.accept_gate.clear()
        asked["late"] = stage.ask("late", "another prompt")
        await stage.held("late")
        crowded = stage.holder("late")
        (other,) = [fake for fake in stage.made if fake is not crowded]
        for request_id in list(other.open):
            other.finish(request_id)
            await asked[request_id]
        stage.runtime.check()
        for _ in range(20):
            await asyncio.sleep(0)
        assert "late" in crowded.open
        crowded.accept_gate.set()
        other.accept_gate.set()
        for _ in range(20):
            await asyncio.sleep(0)
        stage.runtime.check()
        await until(lambda: "late" in other.open)
        stage.finish_all()
        await asyncio.gather(*asked.values())

    play(stage, test())


def test_who_is_called_away_and_leaves_holds_nothing():
    stage = Stage(2)

    async def test() -> None:
        streams = [stage.runtime.generate(Submit(f"r{n}", f"prompt {n}", SamplingParams())) for n in range(5)]
        for stream in streams:
            assert isinstance(await anext(stream), Accepted)
        crowded, other = sorted(stage.made, key=lambda fake: len(fake.open), reverse=True)
        called = list(crowded.open)[2]
        for request_id in list(other.open):
            await streams[int(request_id[1])].aclose()
        assert called in crowded.open, "its reader does not ask what has become of it"
        reading = asyncio.ensure_future(anext(streams[int(called[1])]))
        await until(lambda: called in other.open)
        reading.cancel()
        await until(lambda: not stage.is_held(called))
        for stream in streams:
            await stream.aclose()
        assert not stage.made[0].open
        assert not stage.made[1].open

    play(stage, test())


def test_draining_lets_streams_end_and_can_be_taken_back():
    stage = Stage("1-2", scale_up_waiting=4, scale_down_open=3, scale_hold_s=0, scale_cooldown_s=0)

    async def test() -> None:
        first = [stage.ask(f"r{number}", f"prompt {number}") for number in range(6)]
        await stage.begun(stage.made[0], *(f"r{number}" for number in range(6)))
        stage.later(1)
        await until(lambda: stage.runtime.card.parallel == 4)
        stream = stage.ask("s")
        await stage.held("s")
        assert stage.holder("s").number == 1
        for number in range(1, 6):
            stage.made[0].finish(f"r{number}")
        await asyncio.gather(*first[1:])
        stage.later(1)
        assert stage.runtime.health().replicas[1].state == "draining"
        more = [stage.ask(f"m{number}") for number in range(5)]
        await stage.begun(stage.made[0], *(f"m{number}" for number in range(5)))
        stage.later(1)
        assert stage.runtime.health().replicas[1].state == "ready", "no model is loaded twice"
        assert len(stage.made) == 2
        for number in range(5):
            stage.made[0].finish(f"m{number}")
        await asyncio.gather(*more)
        stage.later(1)
        stage.later(1)
        assert not stage.made[1].is_closed, "its stream goes on"
        stage.made[1].finish("s")
        assert await stream == "by 1"
        stage.later(1)
        await until(lambda: stage.made[1].is_closed)
        stage.made[0].finish("r0")
        assert await first[0] == "by 0"

    play(stage, test())


@pytest.mark.parametrize("error", [ResourceExhausted("no memory"), RuntimeError("a bug")])
def test_a_replica_that_cannot_be_added_is_tried_again_later(error: Exception):
    stage = Stage("1-2", scale_up_waiting=1, scale_down_open=0, **QUICK)

    async def test() -> None:
        asked = [stage.ask(f"r{number}") for number in range(3)]
        await stage.held("r0", "r1", "r2")
        stage.load_error = error
        stage.later(0)
        stage.later(10)
        await until(lambda: len(stage.made) == 2 and stage.made[1].is_closed)
        assert stage.runtime.health().is_ready
        assert list(stage.runtime.health().replicas) == [0]
        stage.load_error = None
        for _ in range(2):
            stage.later(9)
            assert len(stage.made) == 2
        stage.later(1)
        await until(lambda: stage.runtime.card.parallel == 4)
        for number in range(3):
            stage.made[0].finish(f"r{number}")
        await asyncio.gather(*asked)

    play(stage, test())


def test_a_replica_that_found_another_model_in_the_file_is_not_added(caplog: pytest.LogCaptureFixture):
    stage = Stage("1-2", scale_up_waiting=1, scale_down_open=0, **QUICK)

    async def test() -> None:
        asked = [stage.ask(f"r{number}") for number in range(3)]
        await stage.held("r0", "r1", "r2")
        stage.loads_freely = False
        stage.later(0)
        stage.later(10)
        await until(lambda: len(stage.made) == 2)
        stage.made[1].card = msgspec.structs.replace(CARD, chat_template="another")
        stage.made[1].load_gate.set()
        await until(lambda: stage.made[1].is_closed)
        assert list(stage.runtime.health().replicas) == [0]
        stage.finish_all()
        await asyncio.gather(*asked)

    play(stage, test())
    assert "the file was changed after it was loaded" in caplog.text


def test_one_that_has_failed_for_good_is_replaced():
    stage = Stage(2, **QUICK)

    async def test() -> None:
        stage.made[0].beat = beat(num_steps=3)
        stage.made[0].num_restarts = 2
        stage.runtime.check()
        stage.made[0].state = "failed"
        stage.later(1)
        await until(lambda: len(stage.made) == 3 and stage.runtime.card.parallel == 4)
        assert stage.made[0].is_closed
        assert stage.made[2].number == 0
        health = stage.runtime.health()
        assert health.num_restarts == 2, "what has happened stays counted"

    play(stage, test())


def test_closing_ends_what_runs_and_what_loads():
    stage = Stage("1-2", scale_up_waiting=1, scale_down_open=0, scale_hold_s=0)

    async def test() -> None:
        asked = [stage.ask(f"r{number}") for number in range(3)]
        await stage.held("r0", "r1", "r2")
        stage.loads_freely = False
        stage.later(1)
        await until(lambda: len(stage.made) == 2)
        await stage.runtime.close()
        for task in asked:
            with pytest.raises(ModelNotLoaded):
                await task
        with pytest.raises(ModelNotLoaded, match="closed"):
            await stage.ask("late")

    play(stage, test())
