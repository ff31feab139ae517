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
    KV_FULL,
    MAX_BLOCKS,
    Affinity,
    Beginning,
    Candidate,
    beginning_of,
    choose,
)

TEXTS = st.text("ab€", max_size=3 * BLOCK_BYTES)
IDS = st.integers(0, 3)
PROMPTS = st.one_of(TEXTS, st.lists(IDS, max_size=200), st.lists(st.one_of(TEXTS, IDS), max_size=9))
BLOCK = "x" * BLOCK_BYTES


def candidate(number: int, **fields: Any) -> Candidate:
    given: dict[str, Any] = {"number": number, "work": 0, "parallel": 4, "max_open": 8, **fields}
    return Candidate(**given)


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
        assert affinity.matched_tokens(1, beginning_of(prompt)) == num_blocks * BLOCK_TOKENS
    assert affinity.matched_tokens(0, beginning_of(BLOCK)) == 0
    affinity.forget(1)
    assert affinity.matched_tokens(1, beginning_of(BLOCK)) == 0
    assert not affinity._sent.get(1)


def test_the_last_token_is_never_cached():
    affinity = Affinity()
    whole = Beginning((b"k",), BLOCK_TOKENS)
    affinity.note(0, whole)
    assert affinity.matched_tokens(0, whole) == BLOCK_TOKENS - 1


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 5)), max_size=60), st.integers(1, 12))
def test_memory_of_what_was_sent_is_bounded_and_its_newest_part_stays(sent: list[tuple[int, int]], max_keys: int):
    affinity = Affinity(max_keys)
    for stem, num_blocks in sent:
        beginning = Beginning(tuple(b"%d-%d" % (stem, at) for at in range(num_blocks)), 1000)
        affinity.note(0, beginning)
        assert len(affinity._sent[0]) <= max_keys
        assert affinity.matched_tokens(0, beginning) == min(num_blocks, max_keys) * BLOCK_TOKENS


def test_without_candidates_there_is_no_choice():
    assert choose([], Beginning((), 1)) is None


@pytest.mark.parametrize(
    ("first", "second", "chosen"),
    [
        ({"work": 10}, {"work": 9}, 1),
        ({"work": 500, "matched": 900}, {}, 0),
        ({"work": 901, "matched": 900}, {}, 1),
        ({"work": 0, "matched": 900, "num_open": 4}, {"work": 5000, "num_open": 3}, 1),
        ({"matched": 900, "kv_usage": KV_FULL}, {"work": 5000}, 1),
        ({"num_open": 8}, {"num_open": 7, "work": 9999}, 1),
        ({"num_open": 5, "work": 7}, {"num_open": 6, "work": 6}, 1),
        ({"num_sent": 3}, {"num_sent": 2}, 1),
        ({}, {}, 0),
    ],
    ids=[
        "least work",
        "the prefix is worth more than the work",
        "it is not",
        "a free place before a prefix",
        "a full pool is no place",
        "who would refuse comes last",
        "all must wait: least work",
        "in turn",
        "the first",
    ],
)
def test_choice(first: dict[str, Any], second: dict[str, Any], chosen: int) -> None:
    candidates = [candidate(0, **first), candidate(1, **second)]
    for order in (candidates, candidates[::-1]):
        assert choose(order, Beginning((), 1000)) == chosen


def test_a_group_stays_together_while_there_is_room():
    busy, idle = candidate(0, work=900, num_open=3), candidate(1)
    assert choose([busy, idle], Beginning((), 1), companion=0) == 0
    full = candidate(0, work=900, num_open=4)
    assert choose([full, idle], Beginning((), 1), companion=0) == 1
    assert choose([idle], Beginning((), 1), companion=0) == 1
    assert choose([full, candidate(1, work=899, num_open=4)], Beginning((), 1), companion=0) == 1


CANDIDATES = st.builds(
    Candidate,
    number=st.integers(0, 63),
    work=st.integers(0, 9999),
    matched=st.integers(0, 999),
    num_open=st.integers(0, 9),
    parallel=st.integers(1, 4),
    max_open=st.integers(1, 8),
    kv_usage=st.floats(0, 1),
)


@given(st.lists(CANDIDATES, min_size=1, max_size=8, unique_by=lambda c: c.number), st.integers(1000, 9999))
def test_nobody_waits_while_another_has_a_free_place(candidates: list[Candidate], num_tokens: int) -> None:
    number = choose(candidates, Beginning((), num_tokens))
    (chosen,) = [candidate for candidate in candidates if candidate.number == number]
    assert chosen.pressure == min(candidate.pressure for candidate in candidates)
    equals = [candidate for candidate in candidates if candidate.pressure == chosen.pressure]
    assert chosen.work - chosen.matched == min(candidate.work - candidate.matched for candidate in equals)


def test_an_image_in_a_prompt_is_told_by_its_content() -> None:
    def prompt(key: bytes) -> list[int | str | Span]:
        return ["Look: ", Span(key, 4 * BLOCK_TOKENS), "What is it?"]

    cat, dog = beginning_of(prompt(b"cat" * 7)), beginning_of(prompt(b"dog" * 7))
    assert cat == beginning_of(prompt(b"cat" * 7))
    assert len(cat.keys) >= 4
    assert set(cat.keys).isdisjoint(dog.keys)
    assert cat.num_tokens >= 4 * BLOCK_TOKENS
