"""Small vocabularies of every family: our own tokenizer equals libllama's, token for token."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stoker.text.vocabulary import VocabularyTokenizer
from stoker.text.vocabulary.byte_pairs import BYTE_LETTERS
from stoker.text.vocabulary.word_rules import word_rule, word_rule_names
from tests.brief import mostly_slow
from tests.reference.tokenizer_corpus import CORPUS, random_texts, repository_text
from tests.reference.vocabulary_files import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    LibllamaVocabulary,
    our_tokenizer,
    train_byte_pairs,
    train_pieces,
    write_vocabulary,
)

TRAINING = [*CORPUS, *CORPUS, *random_texts(100, seed=2), repository_text()[:4000]]
TEXTS = [*CORPUS, *random_texts(60, seed=3), "unreachable by merges"]
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
ADDED = {
    **dict.fromkeys(("<|im_start|>", "<|im_end|>", "[INST]", "[INST]x"), CONTROL),
    **dict.fromkeys(("<|user|>", "  ", "   ", "\n\n", "aaa"), USER_DEFINED),
}


@contextmanager
def libllama(path: Path) -> Generator[LibllamaVocabulary]:
    reference = LibllamaVocabulary(path)
    try:
        yield reference
    finally:
        reference.close()


def check(path: Path, texts: list[str]) -> VocabularyTokenizer:
    """Compares encoding, pieces and facts."""
    ours = our_tokenizer(path)
    with libllama(path) as reference:
        for text in texts:
            for parse_special in (True, False):
                expected = reference.encode(text, parse_special=parse_special)
                assert ours.encode(text, parse_special=parse_special) == expected, repr(text)
        for render_special in (True, False):
            ids = range(reference.size)
            pieces = [ours.token_bytes(i, render_special=render_special) for i in ids]
            assert pieces == [reference.token_bytes(i, render_special=render_special) for i in ids]
        assert ours.eog_token_ids() == reference.eog_token_ids()
        assert (ours.adds_bos, ours.special.adds_eos, ours.special.adds_sep) == reference.adds()
    return ours


def mixed(tokens: list[str], seed: int, count: int) -> list[str]:
    """Texts made of the tokens themselves, special ones included."""
    source = random.Random(seed)
    picked = [[source.choice([*tokens, *ADDED, " ", "\n"]) for _ in range(9)] for _ in range(count)]
    return ["".join(texts).replace("▁", " ") for texts in picked]


@pytest.fixture(scope="module")
def byte_pairs() -> tuple[list[str], list[str]]:
    return train_byte_pairs(TRAINING, 5000)


@pytest.fixture(scope="module")
def pieces() -> tuple[list[str], list[str]]:
    tokens, merges = train_pieces(TRAINING, 3000)
    return [token for token in tokens if token not in ADDED], merges


NAMES = [name for name in word_rule_names() if (rule := word_rule(name)) and rule.is_byte_level]
FIRST_NAMES = list({word_rule(name): name for name in reversed(NAMES)}.values())
"""One for each way to cut words."""


@pytest.mark.parametrize("name", mostly_slow(NAMES, FIRST_NAMES))
def test_byte_pairs_with_every_way_to_cut_words(
    name: str, byte_pairs: tuple[list[str], list[str]], tmp_path: Path
) -> None:
    tokens, merges = byte_pairs
    added = {text: kind for text, kind in ADDED.items() if text not in tokens} | {"unreachable": NORMAL}
    path = write_vocabulary(
        tmp_path / "tiny.gguf",
        model="gpt2",
        pre=name or None,
        tokens=[*tokens, *added],
        types=[NORMAL] * len(tokens) + [*added.values()],
        merges=merges,
        bos_token_id=5,
        eos_token_id=6,
        seperator_token_id=7,
    )
    check(path, TEXTS)


@pytest.mark.parametrize("name", ["glm4", "glm5", "chatglm-bpe", "gpt-2"])
def test_a_file_without_special_ids_has_those_of_its_kind(
    name: str, byte_pairs: tuple[list[str], list[str]], tmp_path: Path
) -> None:
    path = write_vocabulary(tmp_path / "tiny.gguf", model="gpt2", pre=name, tokens=byte_pairs[0], merges=byte_pairs[1])
    with libllama(path) as reference:
        assert our_tokenizer(path).special.ids == reference.special_ids()


def test_merges_to_texts_that_are_no_tokens(byte_pairs: tuple[list[str], list[str]], tmp_path: Path) -> None:
    tokens, merges = byte_pairs
    kept = [token for number, token in enumerate(tokens) if number % 7 or number < 12]
    path = write_vocabulary(
        tmp_path / "tiny.gguf",
        model="gpt2",
        pre="qwen2",
        tokens=kept,
        merges=merges,
        bos_token_id=5,
        eos_token_id=6,
    )
    check(path, TEXTS)


def telling_characters() -> list[str]:
    """The characters at both ends of every range of one category, and a sample of all others."""
    categories = [unicodedata.category(chr(code)) for code in range(0x110000)]
    borders = {code for code in range(1, 0x110000) if categories[code] != categories[code - 1]}
    codes = sorted(borders | {code - 1 for code in borders} | set(range(0, 0x32400, 16)) | set(range(0x1C00, 0x2C00)))
    return [chr(code) for code in codes if not 0xD800 <= code < 0xE000]


@pytest.mark.parametrize("name", ["gpt-2", "deepseek-v3"])
def test_every_character_belongs_to_the_same_class(name: str, tmp_path: Path) -> None:
    # `x` and the first byte of what follows are one token if both are in one word.
    tokens = [*BYTE_LETTERS, *(first + letter for first in "a1!" for letter in BYTE_LETTERS)]
    merges = [f"{first} {letter}" for first in "a1!" for letter in BYTE_LETTERS]
    path = write_vocabulary(tmp_path / "tiny.gguf", model="gpt2", pre=name, tokens=tokens, merges=merges)
    ours = our_tokenizer(path)
    characters = telling_characters()
    with libllama(path) as reference:
        for start in range(0, len(characters), 256):
            text = "".join(f"a{letter}x1{letter}x!{letter}x" for letter in characters[start : start + 256])
            assert ours.encode(text) == reference.encode(text), f"from U+{ord(characters[start]):04X}"


@pytest.mark.parametrize("ties", [1, 5, 10**9])
@pytest.mark.parametrize("prefix", [None, False, True])
def test_scored_pieces(ties: int, prefix: bool | None, pieces: tuple[list[str], list[str]], tmp_path: Path) -> None:
    values: dict[str, Any] = {} if prefix is None else {"add_space_prefix": prefix}
    check(write_scored(tmp_path, pieces[0], ties=ties, **values), [*TEXTS, *mixed(pieces[0], 4, 60)])


def write_scored(tmp_path: Path, pieces: list[str], *, ties: int = 1, name: str = "tiny", **values: Any) -> Path:
    head = ["<unk>", "<s>", "</s>", *BYTE_TOKENS]
    added = [*ADDED, "<|endoftext|>"]
    return write_vocabulary(
        tmp_path / "tiny.gguf",
        model="llama",
        name=name,
        tokens=[*head, *pieces, *added],
        types=[UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces), *ADDED.values(), CONTROL],
        scores=[*[0.0] * len(head), *(-float(rank // ties) for rank in range(len(pieces))), *[0.0] * len(added)],
        **values,
    )


def test_scored_pieces_whose_special_tokens_swallow_spaces(pieces: tuple[list[str], list[str]], tmp_path: Path) -> None:
    path = write_scored(tmp_path, pieces[0], name="Phi-3-mini")
    odd = ["x <|im_end|>  \n y", "<|im_start|>\u00a0 <|user|> \t z aaa  aaa b <|endoftext|>  c</s>  d<s>  e"]
    ours = check(path, [*TEXTS, *odd, *mixed(pieces[0], 5, 60)])
    assert ours.encode("x<|im_end|>  \n y") == ours.encode("x<|im_end|>y")


def test_pieces_without_tokens_for_bytes(pieces: tuple[list[str], list[str]], tmp_path: Path) -> None:
    letters = sorted({letter for text in TEXTS for letter in text.replace(" ", "▁") if letter > "\0"})
    tokens = list(dict.fromkeys(["<unk>", "<s>", "</s>", *letters, *pieces[0]]))
    path = write_vocabulary(
        tmp_path / "tiny.gguf",
        model="llama",
        tokens=tokens,
        types=[UNKNOWN, CONTROL, CONTROL, *[NORMAL] * (len(tokens) - 3)],
        scores=[-float(rank) for rank in range(len(tokens))],
    )
    check(path, [text for text in TEXTS if "\0" not in text])


@pytest.mark.parametrize(("model", "name"), [("gemma4", None), ("gpt2", "sarvam-moe")])
def test_byte_pairs_of_characters(
    model: str, name: str | None, pieces: tuple[list[str], list[str]], tmp_path: Path
) -> None:
    tokens = [*BYTE_TOKENS, "<unk>", "<s>", "</s>", *pieces[0], "\n", "\n\n\n"]
    path = write_vocabulary(
        tmp_path / "tiny.gguf",
        model=model,
        pre=name,
        tokens=tokens,
        types=[*[BYTE] * 256, UNKNOWN, CONTROL, CONTROL, *[NORMAL] * (len(tokens) - 259)],
        merges=pieces[1],
        bos_token_id=257,
        eos_token_id=258,
    )
    check(path, [*TEXTS, *mixed(pieces[0], 6, 60)])


WORD_PIECE_IDS: dict[str, Any] = {
    "padding_token_id": 0,
    "unknown_token_id": 1,
    "bos_token_id": 2,
    "seperator_token_id": 3,
    "mask_token_id": 4,
}
CHARACTERS = [
    "".join(f"{chr(code)}a " for code in range(start, start + 512) if not 0xD800 <= code < 0xE000)
    for start in (*range(0, 0x3400, 512), *range(0xA000, 0x11000, 512), 0x1E000, 0x1F600, 0x2B800, 0x2F800, 0xE0000)
]


def write_word_pieces(tmp_path: Path, *more: str, **values: Any) -> Path:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *more]
    words = sorted({word for text in TRAINING for word in text.lower().split()})[::3]
    letters = sorted({letter for text in TRAINING for letter in text.lower() if letter > " "})
    inner = [word[start:end] for word in words for start, end in ((1, 3), (2, 5), (3, 9))]
    tokens = [*("▁" + text for text in (*words, *letters)), *letters, *inner]
    clean = [text for text in dict.fromkeys(text.partition("\0")[0] for text in tokens) if text and text not in special]
    types = [CONTROL, UNKNOWN, *[CONTROL] * (len(special) - 2), *[NORMAL] * len(clean)]
    architecture = values.pop("architecture", "bert")
    return write_vocabulary(
        tmp_path / "tiny.gguf",
        model="bert",
        architecture=architecture,
        tokens=[*special, *clean],
        types=types,
        **WORD_PIECE_IDS,
        **values,
    )


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"normalizer__lowercase": False},
        {"normalizer__strip_accents": False},
        {"normalizer__lowercase": False, "normalizer__strip_accents": True},
    ],
    ids=str,
)
def test_word_pieces(values: dict[str, bool], tmp_path: Path) -> None:
    check(write_word_pieces(tmp_path, **values), [*TEXTS, *CHARACTERS])


def test_word_pieces_whose_mask_swallows_spaces(tmp_path: Path) -> None:
    path = write_word_pieces(tmp_path, "<mask>", architecture="jina-bert-v3")
    check(path, ["a <mask> b", "a \t\n<mask>", "<mask>  <mask>"])


@pytest.mark.parametrize(
    "names",
    [
        ["<|end|>", "<|return|>", "<|call|>", "<|channel|>", "<|message|>", "<|start|>"],
        ["<|end|>", "<|flush|>", "<|calls|>"],
        ["<|end|>", "<|return|>"],
        ["</s>", "<|tool_response>", "<turn|>"],
        ["<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"],
        ["<｜fim▁begin｜>", "<｜fim▁end｜>", "<｜fim▁hole｜>", "<｜end▁of▁sentence｜>", "<|eom_id|>", "<|eot_id|>"],
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [NORMAL, CONTROL], ids=["normal", "control"])
def test_tokens_known_by_name(
    names: list[str], kind: int, byte_pairs: tuple[list[str], list[str]], tmp_path: Path
) -> None:
    tokens = [*byte_pairs[0][:400], *names]
    types = [*[NORMAL] * 400, *[kind] * len(names)]
    path = write_vocabulary(
        tmp_path / "tiny.gguf", model="gpt2", pre="gpt-2", tokens=tokens, types=types, merges=byte_pairs[1][:144]
    )
    ours = check(path, ["a".join(names), " ".join(names)])
    with libllama(path) as reference:
        found = {role: token_id for role, token_id in ours.special.ids.items() if role != "eom"}
        expected = reference.special_ids()
    if "<|eot_id|>" in names:  # of several it is whichever libllama's hash table lists first
        assert tokens[found.pop("eot")] in names
        expected.pop("eot")
    assert found == expected
