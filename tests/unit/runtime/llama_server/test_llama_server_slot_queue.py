"""Whose turn it is at llama-server's slots."""

from __future__ import annotations

import asyncio

import pytest

from stoker.core.params import BUILT_IN
from stoker.core.request import Request
from stoker.engine.door import Door
from stoker.errors import Overloaded
from stoker.runtime.external.slot_queue import Place, SlotQueue
from tests.waiting import run


def make_line(*, parallel: int = 2, pool_tokens: int = 100, max_queue_tokens: int = 1000) -> SlotQueue:
    door = Door(capacity=100, parallel=parallel)
    return SlotQueue(parallel=parallel, pool_tokens=pool_tokens, max_queue_tokens=max_queue_tokens, door=door)


def request(client_key: str = "", priority: int = 0, num_prompt: int = 10) -> Request:
    return Request(
        request_id="r", prompt=(1,) * num_prompt, sampling=BUILT_IN, client_key=client_key, priority=priority
    )


class Entrant:
    """Somebody who is at the line until told to leave."""

    def __init__(self, line: SlotQueue, asked: Request, num_tokens: int = 10) -> None:
        self.line = line
        self.task: asyncio.Task[Place] = asyncio.ensure_future(line.enter(asked, num_tokens))

    @property
    def is_in(self) -> bool:
        return self.task.done()

    async def leave(self) -> None:
        self.line.leave(await self.task)
        await asyncio.sleep(0)


async def entrants(line: SlotQueue, *asked: Request, num_tokens: int = 10) -> list[Entrant]:
    found = [Entrant(line, one, num_tokens) for one in asked]
    for _ in range(3):
        await asyncio.sleep(0)
    return found


def test_no_more_run_than_there_are_slots():
    async def test() -> None:
        line = make_line()
        first, second, third = await entrants(line, request(), request(), request())
        assert [first.is_in, second.is_in, third.is_in] == [True, True, False]
        assert (line.num_running, line.num_waiting) == (2, 1)
        await first.leave()
        await third.leave()
        await second.leave()
        assert (line.num_running, line.num_waiting) == (0, 0)

    run(test())


def test_nobody_begins_whose_longest_answer_might_not_fit():
    async def test() -> None:
        line = make_line(parallel=4)
        first, second = await entrants(line, request(), request(), num_tokens=60)
        (small,) = await entrants(line, request())
        assert [first.is_in, second.is_in, small.is_in] == [True, False, False], "nobody overtakes for being small"
        await first.leave()
        assert second.is_in
        await small.leave()
        (huge,) = await entrants(line, request(), num_tokens=1000)
        await second.leave()
        assert huge.is_in, "it gets the whole pool"

    run(test())


def test_clients_take_turns_and_priorities_come_first():
    async def test() -> None:
        line = make_line(parallel=1)
        (running,) = await entrants(line, request("a"))
        waiting = await entrants(line, request("a"), request("a"), request("b"), request("b"), request("c", 1))
        order: list[int] = []
        while len(order) < len(waiting):
            await running.leave()
            (now,) = (n for n, entrant in enumerate(waiting) if entrant.is_in and n not in order)
            order.append(now)
            running = waiting[now]
        assert order == [4, 0, 2, 1, 3]

    run(test())


def test_whoever_goes_away_waits_no_more():
    async def test() -> None:
        line = make_line(parallel=1)
        first, second, third = await entrants(line, request(), request(), request())
        second.task.cancel()
        await asyncio.wait([second.task])
        assert line.num_waiting == 1
        await first.leave()
        assert third.is_in

    run(test())


def test_one_who_is_cancelled_in_the_moment_of_its_turn_gives_it_on():
    async def test() -> None:
        line = make_line(parallel=1)
        first, second, third = await entrants(line, request(), request(), request())
        line.leave(await first.task)
        second.task.cancel()  # its turn has come, and it does not know yet
        await asyncio.wait([second.task, third.task])
        assert second.task.cancelled()
        assert third.is_in

    run(test())


def test_too_many_prompt_tokens_do_not_wait():
    async def test() -> None:
        line = make_line(parallel=1, max_queue_tokens=15)
        big = request(num_prompt=20)
        line.check(big)
        (first,) = await entrants(line, big)
        line.check(big)
        (second,) = await entrants(line, request())
        with pytest.raises(Overloaded):
            line.check(request(num_prompt=6))
        line.check(request(num_prompt=5))
        await first.leave()
        await second.leave()

    run(test())
