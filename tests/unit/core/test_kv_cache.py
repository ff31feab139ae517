from __future__ import annotations

from stoker.backends.scripted import scripted_info
from stoker.core.kv_cache import KVCache


def test_a_slot_of_which_others_hold_every_cell_is_not_retained() -> None:
    kv = KVCache(scripted_info(num_slots=2))
    entries = list(range(40))
    first = kv.open(kv.find_reuse(entries, 40))
    kv.ledger.promise(first, entries)
    kv.ledger.commit()
    second = kv.open(kv.find_reuse(entries, 30))
    assert (kv.tree.length(second), kv.ledger.used) == (30, 40)
    kv.close(second, retain=True)
    assert list(kv.tree.slots) == [first]
    kv.close(first, retain=True)
    assert (kv.held_by_retained, kv.ledger.used) == (40, 40)
    kv.check_integrity()
