"""Publishes the KV cache blocks of an engine in the format of vLLM's KV events, which routers of other projects read.

```
PUB      "" | number, 8 bytes | [time, [event, …], 0]        one message for each change, numbered from 0
ROUTER   a number, 8 bytes  ──►  every message from that number on that is still kept, then the number -1
```

Messages are msgpack arrays, blocks have 32 tokens, and their hashes are unsigned numbers of 64 bits. The KV pool is
the medium `GPU`; the memory tier, to which blocks are evicted from the pool, is `CPU`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import msgspec
import zmq
import zmq.asyncio

from stoker.core.blocks import BLOCK_ENTRIES
from stoker.engine.blocks_held import MEMORY, POOL, StoredBlocks
from stoker.engine.question_messages import BlocksHeld

logger = logging.getLogger(__name__)

MAX_KEPT = 10_000
"""Maximum number of messages that are kept for subscribers that missed some."""
_MEDIUM = {POOL: "GPU", MEMORY: "CPU"}
_END = (-1).to_bytes(8, "big", signed=True)


class BlockStored(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Blocks were stored. The fields and their order are those of vLLM."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str
    lora_name: str | None = None


class BlockRemoved(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Blocks were removed. The fields and their order are those of vLLM."""

    block_hashes: list[int]
    medium: str


class AllBlocksCleared(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """All blocks were removed."""


Event: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared


class _Block(NamedTuple):
    """What an event says about a block. The engine reports this only while the block is in the KV pool."""

    depth: int
    parent: int | None
    token_ids: list[int]
    lora_id: int | None


class Translator:
    """Translates the answers of one engine, in their order, into events.

    It leaves out blocks with embeddings of images, blocks after those, and blocks in memory that were never in the
    pool, such as those loaded from a folder.
    """

    def __init__(self) -> None:
        self._told: dict[str, set[int]] = {POOL: set(), MEMORY: set()}
        self._blocks: dict[int, _Block] = {}
        """All blocks that were published as stored, until they are published as removed."""

    def events(self, answer: BlocksHeld) -> list[Event]:
        """The events of one answer. Blocks of the pool must come with their tokens."""
        events = list(self._events(answer))
        for removed in answer.removed:
            for number in removed.numbers:
                if not self._is_told(number):
                    self._blocks.pop(number, None)
        return events

    def _events(self, answer: BlocksHeld) -> Iterator[Event]:
        if answer.is_whole:
            self._told, self._blocks = {POOL: set(), MEMORY: set()}, {}
            yield AllBlocksCleared()
        for stored in answer.stored:
            yield from self._stored(stored) if stored.medium == POOL else self._offloaded(stored)
        for removed in answer.removed:
            told = self._told[removed.medium]
            if gone := [number for number in removed.numbers if number in told]:
                told.difference_update(gone)
                yield BlockRemoved(gone, _MEDIUM[removed.medium])

    def _stored(self, run: StoredBlocks) -> Iterator[Event]:
        if run.parent is not None and not self._is_told(run.parent):
            return
        first_row = next((at for at, entry in enumerate(run.token_ids) if entry < 0), len(run.token_ids))
        numbers = run.numbers[: first_row // BLOCK_ENTRIES]
        if not numbers:
            return
        tokens = run.token_ids[: len(numbers) * BLOCK_ENTRIES]
        first = 0 if run.parent is None else self._blocks[run.parent].depth + 1
        for index, number in enumerate(numbers):
            own = tokens[index * BLOCK_ENTRIES : (index + 1) * BLOCK_ENTRIES]
            self._blocks[number] = _Block(first + index, numbers[index - 1] if index else run.parent, own, run.lora_id)
        self._told[POOL].update(numbers)
        yield BlockStored(numbers, run.parent, tokens, BLOCK_ENTRIES, run.lora_id, _MEDIUM[POOL])

    def _offloaded(self, stored: StoredBlocks) -> Iterator[Event]:
        known = [(self._blocks[number], number) for number in stored.numbers if number in self._blocks]
        for block, number in sorted(known, key=lambda pair: pair[0].depth):
            if block.parent is None or self._is_told(block.parent):
                self._told[MEMORY].add(number)
                yield BlockStored(
                    [number], block.parent, block.token_ids, BLOCK_ENTRIES, block.lora_id, _MEDIUM[MEMORY]
                )

    def _is_told(self, number: int) -> bool:
        return number in self._told[POOL] or number in self._told[MEMORY]


class KVEventPublisher:
    """Publishes one engine's events on two sockets with free ports. Belongs to one event loop.

    Args:
        host: the address on which the sockets listen.
        clock: Unix time in seconds.
    """

    def __init__(self, host: str, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._translator = Translator()
        self._context = zmq.asyncio.Context()
        self._events = zmq.Socket(self._context, zmq.PUB)
        self._replays: Any = self._context.socket(zmq.ROUTER)
        for socket in (self._events, self._replays):
            socket.set(zmq.LINGER, 0)
        self.endpoint = f"tcp://{host}:{self._events.bind_to_random_port(f'tcp://{host}')}"
        self.replay_endpoint = f"tcp://{host}:{self._replays.bind_to_random_port(f'tcp://{host}')}"
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=MAX_KEPT)
        self._number = 0
        self._replaying = asyncio.create_task(self._keep_replaying(), name="stoker-kv-events")

    def publish(self, answer: BlocksHeld) -> None:
        """Publishes an answer. A slow subscriber misses messages, sees a gap in the numbers, and can ask for them."""
        events = self._translator.events(answer)
        if not events:
            return
        message = msgspec.msgpack.encode([self._clock(), events, 0])
        self._kept.append((self._number, message))
        self._events.send_multipart((b"", _number(self._number), message))
        self._number += 1

    async def close(self) -> None:
        """Closes both sockets. Calling it twice is allowed."""
        self._replaying.cancel()
        await asyncio.gather(self._replaying, return_exceptions=True)
        self._events.close()
        self._replays.close()
        self._context.term()

    async def _keep_replaying(self) -> None:
        while True:
            client, *rest = await self._replays.recv_multipart()
            if len(rest) != 2 or len(rest[1]) != len(_END):
                logger.warning("a subscriber of KV events asks for something that is not the number of a message")
                continue
            start = int.from_bytes(rest[1], "big")
            for number, message in [kept for kept in self._kept if kept[0] >= start]:
                await self._replays.send_multipart((client, b"", _number(number), message))
            await self._replays.send_multipart((client, b"", _END, b""))


def _number(number: int) -> bytes:
    return number.to_bytes(8, "big")
