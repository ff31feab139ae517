"""Tables of characters: what is replaced, and tables that lie."""

from __future__ import annotations

import pytest

from stoker.core.vocabulary import TokenType, Vocabulary
from stoker.errors import ModelFileInvalid
from stoker.text.vocabulary import build_tokenizer
from stoker.text.vocabulary.unigram import CharacterMap
from tests.character_maps import compiled

TABLE = compiled({"ﬁ": "fi", "e\u0301": "é", "\t": " ", "\u200b": "", "q\u0302": "Q"})


def vocabulary(**fields: object) -> Vocabulary:
    tokens = ["<pad>", "</s>", "<unk>", "▁", "a", "b", "ab", "▁ab"]
    types = [TokenType.CONTROL, TokenType.CONTROL, TokenType.UNKNOWN, *[TokenType.NORMAL] * 5]
    scores = [0.0, 0.0, 0.0, -2.0, -3.0, -3.0, -4.0, -9.0]
    given = {"model": "t5", "tokens": tokens, "types": types, "scores": scores, **fields}
    return Vocabulary(**given)  # type: ignore[arg-type]


def test_the_longest_match_is_replaced() -> None:
    characters = CharacterMap(TABLE)
    assert characters.apply("ﬁ\te\u0301e q\u0302q\u200b x") == "fi ée Qq x"
    assert characters.apply("") == ""
    assert CharacterMap(b"").apply("ﬁ") == "ﬁ"


def test_the_most_probable_cut_and_one_unknown_token_for_a_run() -> None:
    tokenizer = build_tokenizer(vocabulary(merges_spaces=True))
    assert tokenizer.encode(" ab   xyz  a") == [3, 6, 3, 2, 3, 4]
    assert tokenizer.special.adds_eos
    assert not tokenizer.special.adds_bos


@pytest.mark.parametrize(
    "table",
    [b"\0", TABLE[:3], TABLE[:100], (1 << 31).to_bytes(4, "little") + b"x" * 64, b"\x03\0\0\0" + b"x" * 64],
)
def test_tables_that_are_cut_off(table: bytes) -> None:
    with pytest.raises(ModelFileInvalid, match="cut off"):
        CharacterMap(table)


@pytest.mark.parametrize("seed", range(8))
def test_tables_of_noise_end(seed: int) -> None:
    import random

    noise = random.Random(seed).randbytes(4096)
    assert isinstance(CharacterMap((2048).to_bytes(4, "little") + noise).apply("any text é ﬁ 長い" * 20), str)


@pytest.mark.parametrize("fields", [{"scores": ()}, {"special_ids": {"unk": 99}, "tokens": ["a"], "types": [1]}])
def test_vocabularies_that_lack_something(fields: dict[str, object]) -> None:
    with pytest.raises(ModelFileInvalid):
        build_tokenizer(vocabulary(**fields))
