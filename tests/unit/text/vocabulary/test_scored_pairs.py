"""Merging by scores equals the definition: again and again the best pair, the leftmost of equals."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from stoker.core.vocabulary import Vocabulary
from stoker.text.vocabulary.scored_pairs import ScoredPairEncoder


def encoder(scores: dict[str, float], *, adds_space_prefix: bool = False) -> ScoredPairEncoder:
    tokens = list(scores)
    vocabulary = Vocabulary(model="llama", tokens=tokens, types=[1] * len(tokens), scores=list(scores.values()))
    ids = {text: token_id for token_id, text in enumerate(tokens)}
    return ScoredPairEncoder(vocabulary, ids, unknown_id=None, adds_space_prefix=adds_space_prefix)


def by_definition(scores: dict[str, float], text: str) -> list[str]:
    pieces = list(text)
    while True:
        pairs = [(-scores[left + right], n) for n, (left, right) in enumerate(pairwise(pieces))
                 if left + right in scores]  # fmt: skip
        if not pairs:
            return pieces
        _, best = min(pairs)
        pieces[best : best + 2] = [pieces[best] + pieces[best + 1]]


vocabularies = st.dictionaries(st.text("ab▁", min_size=2, max_size=5), st.integers(-3, 3).map(float), max_size=20).map(
    lambda found: {"a": 0.0, "b": 0.0, "▁": 0.0} | found
)


@given(scores=vocabularies, text=st.text("ab ", max_size=30))
def test_merges_are_those_of_the_definition(scores: dict[str, float], text: str) -> None:
    tokens = list(scores)
    found = encoder(scores).encode([text] if text else [])
    assert [tokens[token_id] for token_id in found] == by_definition(scores, text.replace(" ", "▁"))


def test_a_space_goes_in_front_of_what_follows_a_special_token() -> None:
    scores = {"▁": 0.0, "a": 0.0, "▁a": 1.0}
    assert encoder(scores, adds_space_prefix=True).encode(["a", 7, "a", "a"]) == [2, 7, 2, 1]
    assert encoder(scores).encode(["a", 7, "a"]) == [1, 7, 1]


def test_what_has_no_token_is_spelled_in_bytes() -> None:
    scores = {"a": 0.0, "<0xC3>": 0.0, "<0xA9>": 0.0}
    assert encoder(scores).encode(["aéa"]) == [0, 1, 2, 0]


def test_a_long_word_takes_no_longer_than_its_length_asks_for() -> None:
    scores = {"a" * 2**n: float(n) for n in range(12)}
    assert len(encoder(scores).encode(["a" * 100_000])) == 100_000 // 2048 + bin(100_000 % 2048).count("1")


def test_remembering_words_does_not_grow_without_end() -> None:
    tested = encoder({"▁": 0.0})
    tested.encode(["".join(f" {n}" for n in range(70_000))])
    assert len(tested._remembered) <= 1 << 16
