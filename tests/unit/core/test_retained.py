from __future__ import annotations

from collections.abc import Hashable

from stoker.backends.scripted import scripted_info
from stoker.core.kv_cache import KVCache
from stoker.core.retained import Retained


def fill(kv: KVCache, entries: list[int], key: Hashable = None) -> int:
    slot = kv.open(kv.find_reuse(entries, len(entries), key), key)
    kv.ledger.promise(slot, entries[kv.tree.length(slot) :])
    kv.ledger.commit()
    return slot


def test_the_slot_that_was_left_first_is_evicted_first() -> None:
    retained = Retained()
    for slot in (3, 1, 2):
        retained.add(slot, "key")
    assert list(retained) == [3, 1, 2]
    assert (retained.first(), retained.first(pinned=3)) == (3, 1)


def test_a_slot_that_is_copied_from_is_evicted_last() -> None:
    retained = Retained()
    for slot in (3, 1, 2):
        retained.add(slot, "key")
    retained.use(3)
    retained.use(7)  # a running slot
    assert list(retained) == [1, 2, 3]


def test_slots_are_found_by_their_key_until_they_are_removed() -> None:
    retained = Retained()
    for slot, key in ((3, "a"), (1, "b"), (2, "a")):
        retained.add(slot, key)
    assert retained.under("a") == [3, 2]
    assert retained.remove(3) == "a"
    assert retained.under("a") == [2]
    assert (retained.slots, 3 in retained, len(retained)) == ({1, 2}, False, 2)


def test_the_pool_makes_room_in_the_order_of_the_rule() -> None:
    kv = KVCache(scripted_info(num_slots=4, kv_tokens=100))
    first = fill(kv, list(range(40)))
    second = fill(kv, list(range(100, 140)))
    for slot in (first, second):
        kv.close(slot, retain=True)
    kv.retained.use(first)
    assert kv.make_room(60) == 60
    assert list(kv.retained) == [first], "the conversation that was used last stays whole"
    assert (kv.num_evicted, kv.num_evicted_slots) == (40, 1)
    kv.check_integrity()
