"""An engine is asked which blocks it holds, its listeners are told, and requests go where their prompts lie."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from stoker.core.params import SamplingParams
from stoker.engine.blocks_held import POOL, RemovedBlocks, StoredBlocks
from stoker.engine.protocol import Submit
from stoker.engine.question_messages import BlocksHeld
from stoker.runtime import block_follower
from stoker.runtime.block_follower import BlockFollower
from stoker.runtime.replica_request import beginning_of_submit
from stoker.runtime.standings import matched_by
from tests.unit.runtime.fake_replica import FakeReplica, Stage, play
from tests.waiting import run, until

PROMPT = "a prompt that is long enough to be worth something " * 40
BLOCKS = [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_follower, "LOOK_S", 0.001)


def whole(*numbers: int) -> BlocksHeld:
    return BlocksHeld("", "one", 1, is_whole=True, stored=[StoredBlocks(POOL, list(numbers))], removed=[])


def change(serial: int, stored: list[int], removed: list[int]) -> BlocksHeld:
    runs = [StoredBlocks(POOL, stored)], [RemovedBlocks(POOL, removed)]
    return BlocksHeld("", "one", serial, is_whole=False, stored=runs[0], removed=runs[1])


def test_listeners_are_told_everything_once_and_then_what_changes() -> None:
    async def test() -> None:
        fake = FakeReplica(0, None)
        fake.become_ready()
        fake.blocks = whole(1, 2)
        follower = BlockFollower(fake)
        heard: list[BlocksHeld] = []
        follower.listen(heard.append)
        await until(lambda: len(heard) == 1)
        fake.blocks = change(2, [3], [1])
        await until(lambda: len(heard) == 2)
        late: list[BlocksHeld] = []
        follower.listen(late.append)
        assert [sorted(run.numbers) for run in late[0].stored] == [[2, 3]]
        assert (late[0].is_whole, late[0].serial) == (True, 2)
        follower.leave(heard.append)
        await follower.close()
        assert heard == [whole(1, 2), change(2, [3], [1])]

    run(test())


def test_engine_that_cannot_say_is_asked_once_and_one_that_is_starting_again() -> None:
    async def test() -> None:
        silent, restarting = FakeReplica(0, None), FakeReplica(1, None)
        silent.become_ready()
        heard: list[BlocksHeld] = []
        followers = [BlockFollower(silent), BlockFollower(restarting)]
        for follower in followers:
            follower.listen(heard.append)
        await until(lambda: silent.num_looks == 1 and restarting.num_looks > 3)
        assert silent.num_looks == 1
        restarting.become_ready()
        restarting.blocks = whole(1)
        await until(lambda: heard == [whole(1)])
        await asyncio.gather(*(follower.close() for follower in followers))

    run(test())


def test_request_goes_where_its_prompt_lies_and_not_where_it_was_sent_first() -> None:
    stage = Stage(2)
    stage.blocks = whole()

    async def test() -> None:
        first, second = stage.made
        first.accepts = second.accepts = BLOCKS
        prefixes = stage.fleet.prefixes
        await until(lambda: prefixes.num_blocks(0) == prefixes.num_blocks(1) == 0)
        asked = stage.ask("before", PROMPT)
        await stage.held("before")
        holder = stage.holder("before")
        other = second if holder is first else first
        holder.finish("before")
        await asked
        assert holder.submits[-1].wants_blocks
        other.blocks = msgspec.structs.replace(whole(*BLOCKS), ledger="restarted")
        await until(lambda: prefixes.num_blocks(other.number) == len(BLOCKS))
        stage.now += 60.0
        matches = prefixes.matches(beginning_of_submit(Submit("q", PROMPT, SamplingParams())))
        assert matched_by(holder.number, matches) < matched_by(other.number, matches)
        again = stage.ask("after", PROMPT)
        await stage.held("after")
        assert stage.holder("after") is other
        other.finish("after")
        await again

    play(stage, test())


def test_what_a_replica_held_is_forgotten_when_it_has_gone() -> None:
    stage = Stage(2)
    stage.blocks = whole(*BLOCKS)

    async def test() -> None:
        prefixes = stage.fleet.prefixes
        await until(lambda: prefixes.num_blocks(0) == prefixes.num_blocks(1) == len(BLOCKS))
        stage.made[1].state = "failed"
        stage.later(1.0)
        assert prefixes.num_blocks(1) is None

    play(stage, test())
