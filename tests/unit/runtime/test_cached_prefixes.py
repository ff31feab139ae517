"""How much of a prompt each replica has cached, by what engines say and by what was just sent."""

from __future__ import annotations

import pytest

from stoker.engine.blocks_held import MEMORY, POOL, RemovedBlocks, StoredBlocks
from stoker.engine.protocol import Accepted
from stoker.engine.question_messages import BlocksHeld
from stoker.runtime import cached_prefixes
from stoker.runtime.cached_prefixes import GRACE_S, HEARD_S, CachedPrefixes
from stoker.runtime.routing import BLOCK_TOKENS, Beginning, beginning_of
from stoker.runtime.standings import matched_by

TEXT = "".join(f"{number:07} " for number in range(512))
"""16 blocks of text, which have become 32 blocks of KV: a token for each four characters."""
BLOCKS = list(range(100, 132))
WHOLE = len(TEXT) // 4


class Story:
    """What a front knows, and the clock that it looks at."""

    def __init__(self) -> None:
        self.now = 100.0
        self.prefixes = CachedPrefixes(lambda: self.now)
        self.serials: dict[int, int] = {}

    def say(self, replica: int, *changes: StoredBlocks | RemovedBlocks, is_whole: bool = False) -> bool:
        serial = self.serials[replica] = self.serials.get(replica, 0) + 1
        stored = [each for each in changes if isinstance(each, StoredBlocks)]
        removed = [each for each in changes if isinstance(each, RemovedBlocks)]
        answer = BlocksHeld("", f"ledger of {replica}", serial, is_whole=is_whole, stored=stored, removed=removed)
        return self.prefixes.note_held(replica, answer)

    def learn(self, text: str = TEXT, blocks: list[int] = BLOCKS) -> Beginning:
        beginning = beginning_of(text)
        self.prefixes.note_accepted(beginning, Accepted("r", len(blocks) * 32, blocks=blocks))
        return beginning

    def matched(self, replica: int, text: str = TEXT) -> int:
        return matched_by(replica, self.prefixes.matches(beginning_of(text)))


def test_blocks_that_are_held_from_the_first_one_on_count() -> None:
    story = Story()
    story.learn()
    story.say(0, StoredBlocks(POOL, BLOCKS[:10]), StoredBlocks(MEMORY, BLOCKS[10:12]), is_whole=True)
    story.say(1, StoredBlocks(POOL, BLOCKS[1:]), is_whole=True)
    story.say(2, StoredBlocks(POOL, BLOCKS), is_whole=True)
    assert story.matched(0) == pytest.approx(12 * 32, abs=2)
    assert story.matched(1) == 0
    assert story.matched(2) == pytest.approx(WHOLE, abs=2)
    assert story.matched(2) < beginning_of(TEXT).num_tokens


def test_prompt_that_begins_as_a_known_one_shares_its_blocks_as_far() -> None:
    story = Story()
    story.learn()
    story.say(0, StoredBlocks(POOL, BLOCKS), is_whole=True)
    assert story.matched(0, TEXT[: 4 * 256] + "something else " * 100) == 4 * BLOCK_TOKENS
    assert story.matched(0, "another " + TEXT) == 0


def test_block_counts_as_long_as_it_is_held_anywhere() -> None:
    story = Story()
    story.learn()
    story.say(0, StoredBlocks(POOL, BLOCKS), StoredBlocks(MEMORY, BLOCKS[:8]), is_whole=True)
    story.say(0, RemovedBlocks(POOL, BLOCKS))
    assert story.matched(0) == pytest.approx(8 * 32, abs=2)
    story.say(0, RemovedBlocks(MEMORY, BLOCKS[4:8]))
    assert story.matched(0) == pytest.approx(4 * 32, abs=2)


def test_open_request_counts_before_the_engine_has_said_anything() -> None:
    story = Story()
    story.say(0, is_whole=True)
    story.prefixes.note_sent(0, beginning_of(TEXT))
    story.now += 1000.0
    assert story.matched(0) == 16 * BLOCK_TOKENS


def test_what_was_evicted_counts_no_more_once_the_engine_has_had_time_to_say_so() -> None:
    story = Story()
    story.say(0, is_whole=True)
    beginning = story.learn()
    story.prefixes.note_sent(0, beginning)
    story.prefixes.note_end(0, beginning)
    assert story.matched(0) == 16 * BLOCK_TOKENS, "the engine may not have been asked since"
    story.now += GRACE_S
    assert story.matched(0) == 0


def test_what_others_have_sent_counts_for_a_while() -> None:
    story = Story()
    story.say(0, is_whole=True)
    story.prefixes.note_heard(0, beginning_of(TEXT))
    assert story.matched(0) == 16 * BLOCK_TOKENS
    story.now += HEARD_S
    assert story.matched(0) == 0


def test_of_a_replica_that_says_nothing_what_was_sent_counts_for_good() -> None:
    story = Story()
    beginning = story.learn()
    for note in (story.prefixes.note_sent, story.prefixes.note_heard, story.prefixes.note_end):
        note(0, beginning)
    story.now += 1e6
    assert story.matched(0) == 16 * BLOCK_TOKENS
    assert story.prefixes.num_blocks(0) is None


def test_answer_that_is_missing_is_noticed() -> None:
    story = Story()
    assert story.say(0, StoredBlocks(POOL, BLOCKS[:2]), is_whole=True)
    story.serials[0] += 1
    assert not story.say(0, StoredBlocks(POOL, BLOCKS[2:4]))
    assert story.prefixes.num_blocks(0) == 2, "what was known is kept meanwhile"
    assert story.say(0, StoredBlocks(POOL, BLOCKS[:5]), is_whole=True)
    assert story.prefixes.num_blocks(0) == 5


def test_answer_that_comes_twice_changes_nothing() -> None:
    story = Story()
    story.say(0, StoredBlocks(POOL, BLOCKS[:2]), is_whole=True)
    story.serials[0] -= 1
    assert story.say(0, StoredBlocks(POOL, BLOCKS[:3]))
    assert story.prefixes.num_blocks(0) == 2


def test_what_was_sent_to_a_process_that_has_died_is_forgotten() -> None:
    story = Story()
    story.say(0, is_whole=True)
    story.prefixes.note_sent(0, beginning_of(TEXT))
    answer = BlocksHeld("", "its successor", 1, is_whole=True, stored=[], removed=[])
    story.prefixes.note_held(0, answer)
    assert story.matched(0) == 0


def test_replica_that_is_gone_has_nothing() -> None:
    story = Story()
    story.learn()
    story.say(0, StoredBlocks(POOL, BLOCKS), is_whole=True)
    story.prefixes.drop(0)
    assert story.matched(0) == 0
    assert not story.prefixes.hears


def test_texts_that_were_used_longest_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_prefixes, "MAX_TEXTS", 20)
    story = Story()
    story.learn()
    story.say(0, StoredBlocks(POOL, BLOCKS), is_whole=True)
    story.learn("y" * 256 * 8, [1] * 16)
    assert story.matched(0) == 12 * BLOCK_TOKENS, "the end of a text leaves before its beginning"
    story.learn("z" * 256 * 20, [2] * 40)
    assert story.matched(0) == 0
