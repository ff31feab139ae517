"""WordPiece: always the longest token that fits, found among the lengths that tokens have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stoker.text.vocabulary.word_pieces import WordPieceEncoder

TOKENS = {"[UNK]": 0, "▁a": 1, "b": 2, "bc": 3, "▁abc": 4, "xyz" * 20_000: 5, "": 6}


def encoder(token_ids: Mapping[str, int]) -> WordPieceEncoder:
    return WordPieceEncoder(token_ids, unknown_id=0, lowercase=True, strip_accents=True)


def test_the_longest_token_that_fits_comes_first() -> None:
    assert encoder(TOKENS).encode(["abc ab abcb abx"]) == [4, 1, 2, 4, 2, 0]
    assert encoder(TOKENS).encode(["a" + "xyz" * 20_000 + "b"]) == [1, 5, 2]


class Counted(Mapping[str, int]):
    """Counts how often it is asked."""

    def __init__(self, token_ids: Mapping[str, int]) -> None:
        self._token_ids, self.num_asked = token_ids, 0

    def __getitem__(self, key: str) -> int:
        self.num_asked += 1
        return self._token_ids[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._token_ids)

    def __len__(self) -> int:
        return len(self._token_ids)


def test_one_long_token_makes_no_word_slow() -> None:
    counted = Counted(TOKENS)
    assert encoder(counted).encode(["ab" + "b" * 5_000]) == [1, *[2] * 5_001]
    assert counted.num_asked < 6 * 5_002
