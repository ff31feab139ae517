from __future__ import annotations

from itertools import pairwise

from stoker.core.blocks import BLOCK_ENTRIES, Chain, root_key
from stoker.core.checkpoints import MAX_CHECKPOINTS, MIN_GAP, MIN_LENGTH, choose, points

ROOT = root_key(())
END = 999


def keys(entries: list[int], root: bytes = ROOT) -> list[bytes]:
    chain = Chain(root)
    chain.extend(entries)
    return chain.keys


def test_equal_beginnings_have_equal_keys_and_no_more_than_that() -> None:
    entries = list(range(5 * BLOCK_ENTRIES))
    other = [*entries]
    other[2 * BLOCK_ENTRIES + 7] = -1
    same = [one == two for one, two in zip(keys(entries), keys(other), strict=True)]
    assert same == [True, True, False, False, False]


def test_only_whole_blocks_have_keys_however_they_came() -> None:
    entries = list(range(3 * BLOCK_ENTRIES + 5))
    chain = Chain(ROOT)
    for end in range(0, len(entries), 7):
        chain.extend(entries[:end])
    chain.extend(entries)
    assert chain.keys == keys(entries)
    assert len(chain.keys) == 3


def test_a_key_at_any_length_is_that_of_the_entries_before_it() -> None:
    entries = list(range(100))
    assert Chain(ROOT).key_at(entries, 70) == Chain(ROOT).key_at(entries[:70], 70)
    assert Chain(ROOT).key_at(entries, 64) == keys(entries)[1]
    assert len({Chain(ROOT).key_at(entries, length) for length in range(1, 101)}) == 100


def test_every_adapter_set_has_keys_of_its_own() -> None:
    """What was computed with an adapter, another scale of it or another order is other KV."""
    sets = [(), (("a", 1.0),), (("a", 0.5),), (("b", 1.0),), (("a", 1.0), ("b", 1.0)), (("b", 1.0), ("a", 1.0))]
    assert len({keys(list(range(32)), root_key(adapters))[0] for adapters in sets}) == len(sets)


def test_states_can_be_kept_at_message_borders_and_whole_blocks() -> None:
    entries = [*range(40), END, *range(30)]
    assert points(entries, {END}) == [32, 40, 41, 64]


def test_the_checkpoints_of_a_prompt() -> None:
    """S2-21: at most 8, with gaps, not too early; the end and the message borders first."""
    system = [1] * 100 + [END]
    turns = [entry for turn in range(20) for entry in [*([turn] * 99), END]]
    prompt = system + turns
    chosen = choose(prompt, len(prompt) - 1, {END})
    assert len(chosen) == MAX_CHECKPOINTS
    assert chosen == sorted(chosen)
    assert all(later - earlier >= MIN_GAP for earlier, later in pairwise(chosen[:-1]))
    assert chosen[-1] == len(prompt) - 1, "right before the last token, which ends a message"
    assert chosen[0] == 100, "behind the system prompt"
    assert choose([1] * (MIN_LENGTH - 1), MIN_LENGTH - 2, {END}) == []
    assert choose([1] * 100, 99, {END}) == [96]


def test_a_long_prompt_without_messages_has_a_checkpoint_now_and_then() -> None:
    assert choose([1] * 20_000, 19_999, {END}) == [8192, 16384, 19_968]
