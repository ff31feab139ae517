"""Where a request goes, and what is remembered of where others went."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.media import Span
from stoker.engine.protocol import Prompt
from stoker.runtime.routing import (
    BLOCK_BYTES,
    BLOCK_TOKENS,
    MAX_BLOCKS,
    Affinity,
    Beginning,
    beginning_of,
)
from stoker.runtime.standings import matched_by

TEXTS = st.text("ab€", max_size=3 * BLOCK_BYTES)
IDS = st.integers(0, 3)
PROMPTS = st.one_of(TEXTS, st.lists(IDS, max_size=200), st.lists(st.one_of(TEXTS, IDS), max_size=9))
BLOCK = "x" * BLOCK_BYTES


def matched(affinity: Affinity, replica: int, beginning: Beginning) -> int:
    return matched_by(replica, affinity.matches(beginning))


def raw(prompt: Prompt) -> bytes:
    parts: Any = [prompt] if isinstance(prompt, str) else prompt
    return b"".join(part.encode() if isinstance(part, str) else part.to_bytes(4, "little") for part in parts)


@given(PROMPTS, PROMPTS)
def test_prompts_share_keys_as_far_as_they_begin_alike(left: Prompt, right: Prompt) -> None:
    alike = zip(raw(left), raw(right), strict=False)
    length = next((at for at, (a, b) in enumerate(alike) if a != b), min(len(raw(left)), len(raw(right))))
    keys = zip(beginning_of(left).keys, beginning_of(right).keys, strict=False)
    assert sum(a == b for a, b in keys) == length // BLOCK_BYTES


def test_the_same_prompt_with_something_else_behind_it_is_another():
    assert set(beginning_of(BLOCK).keys).isdisjoint(beginning_of(BLOCK, b"adapter").keys)


@pytest.mark.parametrize("prompt", ["", [], "\ud800" * 999, [2**80, -1, 0], ["a", 7, "\ud800"]])
def test_any_prompt_has_a_beginning(prompt: Prompt) -> None:
    assert beginning_of(prompt).num_tokens >= 1


def test_a_very_long_prompt_is_read_at_its_beginning_only():
    limit = MAX_BLOCKS * BLOCK_BYTES
    for prompt in ("y" * 2 * limit, [1] * limit, [BLOCK, *[2] * limit]):
        found = beginning_of(prompt)
        assert len(found.keys) == MAX_BLOCKS
        assert found.num_tokens > MAX_BLOCKS * BLOCK_TOKENS


def test_what_was_sent_is_matched_block_by_block():
    affinity = Affinity()
    affinity.note(1, beginning_of(BLOCK * 3 + "one"))
    for prompt, num_blocks in ((BLOCK * 3 + "two", 3), (BLOCK * 2 + "y" * BLOCK_BYTES * 2, 2), ("y" + BLOCK, 0)):
        assert matched(affinity, 1, beginning_of(prompt)) == num_blocks * BLOCK_TOKENS
    assert matched(affinity, 0, beginning_of(BLOCK)) == 0
    affinity.forget(1)
    assert matched(affinity, 1, beginning_of(BLOCK)) == 0
    assert not affinity._sent.get(1)


def test_only_the_common_beginning_is_matched_where_a_character_has_several_bytes():
    affinity = Affinity()
    shared, mine, another = ("前" * 1024, "我" * 2048, "他" * 2048)
    affinity.note(0, beginning_of(shared + mine))
    affinity.note(1, beginning_of(shared + another))
    asked = beginning_of(shared + mine)
    assert [matched(affinity, replica, asked) for replica in (0, 1)] == [36 * BLOCK_TOKENS, 12 * BLOCK_TOKENS]


def test_the_last_token_is_never_cached():
    affinity = Affinity()
    whole = Beginning((b"k",), BLOCK_TOKENS)
    affinity.note(0, whole)
    assert matched(affinity, 0, whole) == BLOCK_TOKENS - 1


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 5)), max_size=60), st.integers(1, 12))
def test_memory_of_what_was_sent_is_bounded_and_its_newest_part_stays(sent: list[tuple[int, int]], max_keys: int):
    affinity = Affinity(max_keys=max_keys)
    for stem, num_blocks in sent:
        beginning = Beginning(tuple(b"%d-%d" % (stem, at) for at in range(num_blocks)), 1000)
        affinity.note(0, beginning)
        assert len(affinity._sent[0]) <= max_keys
        assert matched(affinity, 0, beginning) == min(num_blocks, max_keys) * BLOCK_TOKENS


def test_an_image_in_a_prompt_is_told_by_its_content() -> None:
    def prompt(key: bytes) -> list[int | str | Span]:
        return ["Look: ", Span(key, 4 * BLOCK_TOKENS), "What is it?"]

    cat, dog = beginning_of(prompt(b"cat" * 7)), beginning_of(prompt(b"dog" * 7))
    assert cat == beginning_of(prompt(b"cat" * 7))
    assert len(cat.keys) >= 4
    assert set(cat.keys).isdisjoint(dog.keys)
    assert cat.num_tokens >= 4 * BLOCK_TOKENS
