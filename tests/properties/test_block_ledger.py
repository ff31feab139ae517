"""What an engine says of its blocks is what its pool and its memory hold, whatever has happened in between."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.backends.scripted import scripted_info
from stoker.cache.store import KVStore
from stoker.core.blocks import BLOCK_ENTRIES, Chain, root_key
from stoker.core.sequence import CacheKey
from stoker.engine.block_ledger import BlockLedger
from stoker.engine.blocks_held import MEMORY, POOL, block_number
from stoker.engine.question_messages import BlocksHeld, LookAtBlocks
from tests.brief import examples
from tests.harness import ALL_TRAITS, Loop, make_request
from tests.properties.test_tier_invariances import CONTEXT, make_conversations, talk


@dataclass
class Mirror:
    """The knowledge of a follower that was told everything once, and the changes since."""

    held: dict[str, set[int]] = field(default_factory=lambda: {POOL: set(), MEMORY: set()})
    ledger: str = ""
    serial: int = 0

    def take(self, answer: BlocksHeld) -> None:
        if answer.is_whole:
            self.held = {POOL: set(), MEMORY: set()}
        else:
            assert answer.serial - self.serial == bool(answer.stored or answer.removed)
        for removed in answer.removed:
            assert self.held[removed.medium].issuperset(removed.numbers), "what was not there is said to have gone"
            self.held[removed.medium].difference_update(removed.numbers)
        for stored in answer.stored:
            assert self.held[stored.medium].isdisjoint(stored.numbers), "what was there is said to have come"
            assert stored.parent is None or stored.parent in self.held[POOL]
            self.held[stored.medium].update(stored.numbers)
        self.ledger, self.serial = answer.ledger, answer.serial


@dataclass
class Watched(Loop):
    """Looked at after every step, or less often."""

    every: int = 1
    mirror: Mirror = field(default_factory=Mirror)
    num_steps: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        store = self.store
        assert store is not None
        self.ledger = BlockLedger(self.scheduler.kv, store.memory_keys)

    def step(self) -> None:
        super().step()
        self.num_steps += 1
        if self.num_steps % self.every == 0:
            self.look()

    def look(self) -> None:
        question = LookAtBlocks(ledger=self.mirror.ledger, since=self.mirror.serial, wants_tokens=True)
        answer = self.ledger.look(question)
        self.mirror.take(answer)
        assert self.mirror.held == self.really_held()
        for stored in answer.stored:
            assert len(stored.token_ids) == (BLOCK_ENTRIES * len(stored.numbers) if stored.medium == POOL else 0)

    def really_held(self) -> dict[str, set[int]]:
        kv, pool = self.scheduler.kv, set[int]()
        for slot in kv.tree.slots:
            key = kv.key_of(slot)
            assert isinstance(key, CacheKey)
            if key.owner is None:
                chain = Chain(root_key(key.adapters))
                chain.extend(kv.tree.entries(slot))
                pool.update(map(block_number, chain.keys))
        assert self.store is not None
        return {POOL: pool, MEMORY: {block_number(key) for key in self.store._host._held}}


def watched(rng: random.Random, every: int) -> Watched:
    info = scripted_info(
        context_size=CONTEXT,
        kv_tokens=rng.choice([CONTEXT, CONTEXT + 50, 900]),
        num_slots=rng.choice([2, 4, 8]),
        max_batch_tokens=rng.choice([16, 64, 256]),
        traits=rng.choice([traits for traits in ALL_TRAITS if traits.can_truncate]),
    )
    running = min(rng.choice([1, 2, 4]), info.num_slots)
    return Watched(info, max_running=running, store=KVStore(rng.choice([30_000, 10**7])), every=every)


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1, 1, 7]))
def test_changes_add_up_to_what_is_held(seed: int, every: int) -> None:
    rng = random.Random(seed)
    loop = watched(rng, every)
    talk(rng, loop, make_conversations(rng, 5), num_turns=10)
    loop.look()
    assert loop.mirror.serial > 1, "the pool never changed"


def test_blocks_come_with_what_is_in_them_and_what_they_go_on_from() -> None:
    loop = watched(random.Random(1), every=10**9)
    prompt = [index % 250 for index in range(3 * BLOCK_ENTRIES)]
    loop.add(make_request("short", prompt[: BLOCK_ENTRIES + 1], 1))
    loop.run()
    loop.ledger.look(LookAtBlocks())
    known = loop.ledger.look(LookAtBlocks())
    loop.add(make_request("long", [*prompt, 9], 1))
    loop.run()
    answer = loop.ledger.look(LookAtBlocks(ledger=known.ledger, since=known.serial, wants_tokens=True))
    (run,) = [stored for stored in answer.stored if stored.medium == POOL]
    keys = Chain(root_key(()))
    keys.extend(prompt)
    assert run.parent == block_number(keys.keys[0])
    assert run.numbers == [block_number(key) for key in keys.keys[1:]]
    assert run.token_ids == prompt[BLOCK_ENTRIES:]


def test_caller_who_missed_something_is_told_everything() -> None:
    loop = watched(random.Random(2), every=10**9)
    loop.add(make_request("a", range(100), 1))
    loop.run()
    first = loop.ledger.look(LookAtBlocks())
    assert first.is_whole
    again = loop.ledger.look(LookAtBlocks(ledger=first.ledger, since=first.serial))
    assert (again.is_whole, again.stored, again.removed, again.serial) == (False, [], [], first.serial)
    for question in (LookAtBlocks(ledger="other", since=first.serial), LookAtBlocks(ledger=first.ledger, since=0)):
        assert loop.ledger.look(question) == first


def test_what_belongs_to_one_request_is_not_told() -> None:
    loop = watched(random.Random(3), every=1)
    loop.add(make_request("private", range(100), 60, cache_prompt=False))
    for _ in range(20):
        loop.step()
    assert not loop.mirror.held[POOL]
