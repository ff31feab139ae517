"""A slow reader loses nothing and holds up nobody."""

from __future__ import annotations

import asyncio

import pytest

from stoker.engine.inbox import Inbox, InboxLimits, merge
from stoker.engine.protocol import Accepted, Output, PositionLogprobs, TokenLogprob, Usage
from stoker.errors import EngineCrashed


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def output(index: int, *, is_last: bool = False) -> Output:
    logprobs = [PositionLogprobs(TokenLogprob(index, -0.5, b"x"), ())]
    return Output("a", f"<{index}>", [index], Usage(3, index + 1, 0), logprobs, "stop" if is_last else None)


def test_prompt_reader_gets_every_output_by_itself():
    async def read() -> None:
        inbox = Inbox(InboxLimits(), Clock())
        for index in range(50):
            inbox.put(output(index))
            assert await inbox.get() == output(index)

    asyncio.run(read())


def test_late_reader_gets_one_output_that_says_it_all():
    async def read() -> None:
        inbox = Inbox(InboxLimits(max_separate=4), Clock())
        inbox.put(Accepted("a", 3))
        for index in range(20):
            inbox.put(output(index, is_last=index == 19))
        assert await inbox.get() == Accepted("a", 3)
        merged = await inbox.get()
        assert merged == merge([output(index, is_last=index == 19) for index in range(20)])
        assert isinstance(merged, Output)
        assert merged.text == "".join(f"<{index}>" for index in range(20))
        assert merged.token_ids == list(range(20))
        assert len(merged.logprobs or []) == 20
        assert (merged.finish_reason, merged.usage) == ("stop", Usage(3, 20, 0))

    asyncio.run(read())


def test_error_comes_after_what_is_unread():
    async def read() -> None:
        inbox = Inbox(InboxLimits(), Clock())
        inbox.put(output(0))
        inbox.end(EngineCrashed("gone"))
        assert await inbox.get() == output(0)
        for _ in range(2):
            with pytest.raises(EngineCrashed):
                await inbox.get()

    asyncio.run(read())


def test_waiting_reader_is_woken_by_an_event_and_by_an_error():
    async def read() -> None:
        inbox = Inbox(InboxLimits(), Clock())
        reading = asyncio.create_task(inbox.get())
        await asyncio.sleep(0)
        inbox.put(output(0))
        assert await reading == output(0)
        reading = asyncio.create_task(inbox.get())
        await asyncio.sleep(0)
        inbox.end(EngineCrashed("gone"))
        with pytest.raises(EngineCrashed):
            await reading

    asyncio.run(read())


def test_overdue_by_bytes_until_it_is_read():
    async def read() -> None:
        inbox = Inbox(InboxLimits(max_bytes=2000), Clock())
        while not inbox.is_overdue:
            inbox.put(output(0))
        while not (await inbox.get()) or inbox.is_overdue:
            pass
        assert not inbox.is_overdue

    asyncio.run(read())


def test_overdue_by_time_only_while_something_is_unread():
    async def read() -> None:
        clock = Clock()
        inbox = Inbox(InboxLimits(max_idle_s=10), clock)
        clock.now = 100
        assert not inbox.is_overdue
        inbox.put(output(0))
        clock.now = 109
        assert not inbox.is_overdue
        clock.now = 111
        assert inbox.is_overdue
        await inbox.get()
        assert not inbox.is_overdue

    asyncio.run(read())
