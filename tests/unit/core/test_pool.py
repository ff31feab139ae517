"""What is shown of the pool is the ledger, whatever requests do: random loads over every kind of cache."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.backends.scripted import scripted_info
from stoker.core.kv_cache import KVCache
from stoker.core.model_info import CacheTraits
from stoker.core.pool import MAX_NODES, PoolView, pool_view
from tests.harness import ALL_TRAITS, Loop, make_request


def check(view: PoolView, kv: KVCache) -> None:
    assert sum(node.num_tokens for node in view.nodes) == view.held == kv.ledger.held
    assert view.held + view.promised <= view.capacity
    numbers = [node.number for node in view.nodes]
    assert len(set(numbers)) == len(numbers) <= max(MAX_NODES, len(list(kv.tree.slots)))
    assert {node.parent for node in view.nodes} <= {0, *numbers}
    holding = {slot for slot in kv.tree.slots if kv.tree.length(slot)}
    assert {slot for node in view.nodes for slot in node.slots} == holding
    assert view.retained == kv.held_by_retained
    assert set(view.leaving) == kv.retained.slots


@pytest.mark.parametrize("traits", ALL_TRAITS)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_widths_add_up_to_what_is_held(traits: CacheTraits, seed: int):
    rng = random.Random(seed)
    loop = Loop(scripted_info(kv_tokens=300, context_size=200, num_slots=8, traits=traits), max_running=3)
    scheduler = loop.scheduler
    beginnings = [[rng.randrange(256) for _ in range(rng.randrange(1, 60))] for _ in range(2)]
    for number in range(rng.randrange(2, 9)):
        prompt = rng.choice(beginnings) + [rng.randrange(256) for _ in range(rng.randrange(1, 30))]
        loop.add(make_request(f"r{number}", prompt, max_tokens=rng.randrange(1, 12)))
        for _ in range(rng.randrange(4)):
            if scheduler.has_work:
                loop.step()
            check(pool_view(scheduler.kv), scheduler.kv)
    while scheduler.has_work:
        loop.step()
        check(pool_view(scheduler.kv), scheduler.kv)
    states = scheduler.states()
    assert states == []


def test_a_shared_beginning_is_one_node_with_all_its_slots():
    loop = Loop(scripted_info(kv_tokens=2048, num_slots=12), max_running=8)
    beginning = list(range(100))
    for number in range(8):
        loop.add(make_request(f"r{number}", [*beginning, 200 + number, 3], max_tokens=40))
    while any(state.state != "decode" for state in loop.scheduler.states()):
        loop.step()
    view = pool_view(loop.scheduler.kv)
    (trunk,) = [node for node in view.nodes if node.parent == 0]
    assert (trunk.num_tokens, trunk.num_slots, trunk.is_running) == (100, 8, True)
    branches = [node for node in view.nodes if node.parent == trunk.number]
    assert sorted(slot for node in branches for slot in node.slots) == sorted(
        state.slot for state in loop.scheduler.states() if state.slot is not None
    )
    assert sum(node.num_tokens for node in view.nodes) == loop.scheduler.kv_used
    cached = sorted(state.cached for state in loop.scheduler.states())
    assert cached == [(0, 0, 0)] + [(100, 0, 0)] * 7, "the beginning was computed once"


def test_small_nodes_are_added_up_and_their_number_is_bounded():
    info = scripted_info(kv_tokens=100_000, context_size=4096, num_slots=600, max_batch_tokens=4096)
    kv = KVCache(info)
    for slot in range(500):
        kv.tree.insert(slot)
        kv.tree.extend(slot, [slot % 256] * (slot + 1))
    kv.tree.insert(500)
    kv.tree.copy(499, 500, 100)
    view = pool_view(kv)
    assert len(view.nodes) <= MAX_NODES
    assert sum(node.num_tokens for node in view.nodes) == kv.ledger.held
    rest = next(node for node in view.nodes if node.number == 0)
    assert rest.parent == 0
    assert rest.num_tokens > 0
