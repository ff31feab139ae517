"""Events about blocks of KV have the form that routers of other projects read, and none is lost for good."""

from __future__ import annotations

import asyncio

import msgspec
import zmq
import zmq.asyncio

from stoker.cluster.kv_events import KVEventPublisher, Translator
from stoker.engine.blocks_held import MEMORY, POOL, RemovedBlocks, StoredBlocks
from stoker.engine.question_messages import BlocksHeld
from tests.waiting import run

TOKENS = list(range(64))
BIG = 2**64 - 1


def answer(serial: int, *changes: StoredBlocks | RemovedBlocks, is_whole: bool = False) -> BlocksHeld:
    stored = [each for each in changes if isinstance(each, StoredBlocks)]
    removed = [each for each in changes if isinstance(each, RemovedBlocks)]
    return BlocksHeld("", "one", serial, is_whole=is_whole, stored=stored, removed=removed)


def sent(translator: Translator, given: BlocksHeld) -> object:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(translator.events(given)))


def test_events_have_the_fields_of_vllm_in_its_order() -> None:
    translator = Translator()
    first = answer(1, StoredBlocks(POOL, [BIG, 5], None, TOKENS), StoredBlocks(MEMORY, [5]), is_whole=True)
    assert sent(translator, first) == [
        ["AllBlocksCleared"],
        ["BlockStored", [BIG, 5], None, TOKENS, 32, None, "GPU", None],
        ["BlockStored", [5], BIG, TOKENS[32:], 32, None, "CPU", None],
    ]
    second = answer(2, StoredBlocks(POOL, [6], 5, TOKENS[:32], 77), RemovedBlocks(MEMORY, [5]))
    assert sent(translator, second) == [
        ["BlockStored", [6], 5, TOKENS[:32], 32, 77, "GPU", None],
        ["BlockRemoved", [5], "CPU"],
    ]


def test_blocks_in_memory_are_told_beginnings_first_with_what_was_in_them_in_the_pool() -> None:
    translator = Translator()
    translator.events(answer(1, StoredBlocks(POOL, [1, 2], None, TOKENS), is_whole=True))
    moved = answer(2, StoredBlocks(MEMORY, [2, 9, 1]), RemovedBlocks(POOL, [1, 2]))
    assert sent(translator, moved) == [
        ["BlockStored", [1], None, TOKENS[:32], 32, None, "CPU", None],
        ["BlockStored", [2], 1, TOKENS[32:], 32, None, "CPU", None],
        ["BlockRemoved", [1, 2], "GPU"],
    ]
    assert sent(translator, answer(3, RemovedBlocks(MEMORY, [1, 2, 9]))) == [["BlockRemoved", [1, 2], "CPU"]]
    assert sent(translator, answer(4, StoredBlocks(MEMORY, [1]))) == [], "nothing is known of it any more"


def test_blocks_with_rows_of_images_and_what_follows_them_are_left_out() -> None:
    translator = Translator()
    rows = [*TOKENS[:40], -9, *TOKENS[:55]]
    translator.events(answer(1, is_whole=True))
    assert sent(translator, answer(2, StoredBlocks(POOL, [1, 2, 3], None, rows))) == [
        ["BlockStored", [1], None, TOKENS[:32], 32, None, "GPU", None]
    ]
    assert sent(translator, answer(3, StoredBlocks(POOL, [4], 3, TOKENS[:32]))) == []
    assert sent(translator, answer(4, RemovedBlocks(POOL, [1, 2, 3, 4]))) == [["BlockRemoved", [1], "GPU"]]


def test_subscriber_hears_what_changes_and_can_ask_for_what_it_missed() -> None:
    async def test() -> None:
        context = zmq.asyncio.Context()
        publisher = KVEventPublisher("127.0.0.1", clock=lambda: 1.5)
        publisher.publish(answer(1, StoredBlocks(POOL, [1], None, TOKENS[:32]), is_whole=True))
        with context.socket(zmq.SUB) as subscriber, context.socket(zmq.DEALER) as asker:
            for socket in (subscriber, asker):
                socket.set(zmq.LINGER, 0)
            subscriber.subscribe(b"")
            subscriber.connect(publisher.endpoint)
            asker.connect(publisher.replay_endpoint)
            hearing = asyncio.ensure_future(subscriber.recv_multipart())
            serial = 2
            while not hearing.done():  # until the subscription has arrived
                publisher.publish(answer(serial, StoredBlocks(POOL, [serial], 1, TOKENS[:32])))
                serial += 1
                await asyncio.wait([hearing], timeout=0.02)
            topic, number, message = hearing.result()
            told = int.from_bytes(number, "big") + 1
            event = ["BlockStored", [told], 1, TOKENS[:32], 32, None, "GPU", None]
            assert (topic, msgspec.msgpack.decode(message)) == (b"", [1.5, [event], 0])
            await asker.send_multipart([b"", b"nonsense, which is ignored"])
            await asker.send_multipart([b"", (0).to_bytes(8, "big")])
            numbers = [int.from_bytes((await asker.recv_multipart())[1], "big", signed=True) for _ in range(serial)]
            assert numbers == [*range(serial - 1), -1]
        await publisher.close()
        context.term()

    run(test())
