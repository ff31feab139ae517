"""NVIDIA Dynamo's router reads the events of two engines, and chooses the one that holds the prompt.

It runs where `ai-dynamo-runtime` is installed, which Ray and it do not agree to share an environment for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stoker.cluster.kv_events import KVEventPublisher
from stoker.core.blocks import BLOCK_ENTRIES, Chain, root_key
from stoker.engine.blocks_held import MEMORY, POOL, RemovedBlocks, StoredBlocks, block_number
from stoker.engine.question_messages import BlocksHeld
from tests.waiting import run

dynamo: Any = pytest.importorskip("dynamo.llm", reason="pip install ai-dynamo-runtime")

TOKENS = list(range(1, 8 * BLOCK_ENTRIES + 1))
QUESTION = {"model_name": "default", "token_ids": [*TOKENS, *[999] * 40], "allowed_worker_ids": [1, 2]}


def numbers() -> list[int]:
    chain = Chain(root_key(()))
    chain.extend(TOKENS)
    return [block_number(key) for key in chain.keys]


def answer(serial: int, *changes: StoredBlocks | RemovedBlocks) -> BlocksHeld:
    stored = [each for each in changes if isinstance(each, StoredBlocks)]
    removed = [each for each in changes if isinstance(each, RemovedBlocks)]
    return BlocksHeld("", "one", serial, is_whole=False, stored=stored, removed=removed)


async def until(is_true: Callable[[], Awaitable[bool]]) -> None:
    """The outer bound of the test ends what never comes true."""
    while not await is_true():  # noqa: ASYNC110
        await asyncio.sleep(0.05)


def test_router_chooses_the_engine_that_holds_the_prompt() -> None:
    async def test() -> None:
        publishers = [KVEventPublisher("127.0.0.1") for _ in range(2)]
        service = dynamo.SelectionService(indexer_threads=1)
        for number, publisher in enumerate(publishers, 1):
            worker = {"worker_id": number, "model_name": "default", "endpoint": f"ray://{number}"}
            sizes = {"block_size": BLOCK_ENTRIES, "max_num_batched_tokens": 2048}
            ranks = {"data_parallel_start_rank": 0, "data_parallel_size": 1}
            await service.upsert_worker(worker | sizes | ranks | {"kv_events_endpoints": {0: publisher.endpoint}})
        serial, asked = 0, 0

        async def selected() -> tuple[int, int]:
            nonlocal asked
            asked += 1
            found = await service.select(QUESTION | {"selection_id": str(asked)})
            return found["worker_id"], found["effective_prefill_tokens"]

        async def tells_and_finds(number: int, cached: int, *changes: StoredBlocks | RemovedBlocks) -> bool:
            nonlocal serial
            serial += 1
            publishers[number - 1].publish(answer(serial, *changes))
            await asyncio.sleep(0.05)
            return await selected() == (number, len(QUESTION["token_ids"]) - cached)

        await until(lambda: tells_and_finds(2, 256, StoredBlocks(POOL, numbers(), None, TOKENS)))
        await until(lambda: tells_and_finds(2, 128, RemovedBlocks(POOL, numbers()[4:])))
        await until(lambda: tells_and_finds(1, 256, StoredBlocks(POOL, numbers(), None, TOKENS)))
        publishers[0].publish(answer(1, StoredBlocks(MEMORY, numbers()), RemovedBlocks(POOL, numbers())))
        publishers[1].publish(answer(1, RemovedBlocks(POOL, numbers())))
        await asyncio.sleep(0.5)  # both are on their way
        assert (await selected())[0] == 1, "it has the prompt in memory, the other one nowhere"
        service.shutdown()
        for publisher in publishers:
            await publisher.close()

    run(test())
