"""The parent's sockets: a child that has not connected yet, and a system that has no more to give."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest
import zmq

from stoker.engine.channel import Channel
from stoker.engine.protocol import Shutdown
from stoker.errors import ModelNotLoaded
from tests.waiting import run


@contextmanager
def free_descriptors(count: int) -> Generator[None]:
    """No more than so many can be opened within."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def num_files(folder: Path) -> int:
    return len(list(folder.iterdir()))


def test_without_descriptors_it_is_an_oserror_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    async def test() -> None:
        gc.collect()  # what is closed meanwhile would be room for another one
        context = zmq.Context()
        Channel(context).close()  # the first one starts the context's threads
        count, channel = 0, None
        while channel is None:  # it fails at each of its steps, one after the other
            with suppress(OSError), free_descriptors(count):
                channel = Channel(context)
            assert num_files(tmp_path) == (channel is not None)
            count += 1
        assert count > 1
        channel.close()
        context.term()  # would wait for a socket that was left open

    asyncio.run(test())


def test_commands_can_be_sent_once_the_child_is_connected_to_their_socket():
    async def test() -> None:
        with zmq.Context() as context, context.socket(zmq.PUSH) as events, context.socket(zmq.PULL) as commands:
            channel = Channel(context)
            try:
                connected = asyncio.create_task(channel.connected())
                events.connect(channel.events)
                events.send(msgspec.msgpack.encode([]))
                assert await channel.receive() == [], "the other connection may be made long before"
                assert not connected.done()
                with pytest.raises(ModelNotLoaded):
                    channel.send(Shutdown())
                commands.connect(channel.commands)
                await connected
                channel.send(Shutdown())
                assert await asyncio.to_thread(commands.poll, 10_000)
            finally:
                channel.close()

    run(test())
