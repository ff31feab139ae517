"""An exported `tokenizer.json`, read by `tokenizers`, gives the tokens of our own tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tokenizers import Tokenizer

from stoker.export.tokenizer_json import tokenizer_json
from stoker.models.gguf import read_gguf
from stoker.models.vocabulary import read_vocabulary
from stoker.text.tokenizer import encode_prompt
from stoker.text.vocabulary import build_tokenizer
from stoker.text.vocabulary.word_rules import word_rule, word_rule_names
from tests.brief import mostly_slow
from tests.reference.tokenizer_corpus import CORPUS, random_texts, repository_text
from tests.reference.vocabulary_files import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    our_tokenizer,
    train_byte_pairs,
    train_pieces,
    write_vocabulary,
)

TRAINING = [*CORPUS, *random_texts(60, seed=2), repository_text()[:4000]]
RUNS = [text * count for text in ("a", "=", "-=", " ", "\n", "ab", " a") for count in (2, 3, 5, 8, 13, 31)]
TEXTS = [
    *CORPUS,
    *RUNS,
    "x<|im_end|>  \n y",
    "<|im_start|>user\nhi<|im_end|>",
    "a <|user|>\n\n\nb   c aaaa",
    "unreachable by merges",
]
ADDED = {"<|im_start|>": CONTROL, "<|im_end|>": CONTROL, "<|user|>": USER_DEFINED, "\n\n": USER_DEFINED}
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
RULES = {word_rule(name): name for name in word_rule_names() if (rule := word_rule(name)) and rule.is_byte_level}
"""One name for each."""
NEW_IN_UNICODE_16 = "\U0001fae9"


@pytest.fixture(scope="module")
def byte_pairs() -> tuple[list[str], list[str]]:
    return train_byte_pairs(TRAINING, 3000)


@pytest.fixture(scope="module")
def pieces() -> tuple[list[str], list[str]]:
    return train_pieces(TRAINING, 1500)


def check(path: Path, texts: list[str]) -> Tokenizer:
    with read_gguf(path) as gguf:
        vocabulary = read_vocabulary(gguf)
    ours = build_tokenizer(vocabulary)
    written = Tokenizer.from_buffer(msgspec.json.encode(tokenizer_json(vocabulary, ours.special)))
    for text in texts:
        if NEW_IN_UNICODE_16 not in text:
            assert written.encode(text, add_special_tokens=False).ids == ours.encode(text), repr(text)
    assert written.encode("the text").ids == encode_prompt(ours, "the text")
    return written


@pytest.mark.parametrize("model", mostly_slow(["smollm2", "gemma3"], ["smollm2"]))
def test_real_vocabularies(model: str, request: pytest.FixtureRequest) -> None:
    ours = our_tokenizer(request.getfixturevalue(f"{model}_path"))
    folder: Path = request.getfixturevalue(f"{model}_folder")
    written = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in [*TEXTS, *random_texts(80, seed=5)]:
        expected = ours.encode(text)
        is_lossy = b"".join(ours.token_bytes(i, render_special=True) for i in expected) != text.encode()
        if not is_lossy and NEW_IN_UNICODE_16 not in text:  # some bytes have no token in smollm2
            assert written.encode(text, add_special_tokens=False).ids == expected, repr(text)
    assert written.encode("the text").ids == encode_prompt(ours, "the text")
    ids = ours.encode("".join(CORPUS[:8]))
    expected = b"".join(map(ours.token_bytes, ids)).decode(errors="replace")
    assert written.decode(ids) == expected
    assert written.get_vocab_size() == ours.vocab_size


@pytest.mark.parametrize("name", RULES.values())
def test_every_way_to_cut_words(name: str, byte_pairs: tuple[list[str], list[str]], tmp_path: Path) -> None:
    tokens, merges = byte_pairs
    added = {text: kind for text, kind in ADDED.items() if text not in tokens}
    path = write_vocabulary(
        tmp_path / "tiny.gguf",
        model="gpt2",
        pre=name or None,
        tokens=[*tokens, *added, "unreachable"],
        types=[NORMAL] * len(tokens) + [*added.values(), NORMAL],
        merges=merges,
        bos_token_id=5,
        eos_token_id=6,
        seperator_token_id=7,
    )
    check(path, TEXTS)


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("name", ["tiny", "Phi-3-mini"])
def test_scored_pieces(name: str, prefix: bool, pieces: tuple[list[str], list[str]], tmp_path: Path) -> None:
    head = ["<unk>", "<s>", "</s>", *BYTES]
    # Phi 3's special tokens swallow the spaces behind them; none of them is space itself.
    added = {text: kind for text, kind in ADDED.items() if name == "tiny" or text.strip()}
    values: dict[str, Any] = {"add_space_prefix": prefix}
    path = write_vocabulary(
        tmp_path / "tiny.gguf",
        model="llama",
        name=name,
        tokens=[*head, *pieces[0], *added],
        types=[UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces[0]), *added.values()],
        scores=[*[0.0] * len(head), *(-float(rank) for rank in range(len(pieces[0]))), *[0.0] * len(added)],
        **values,
    )
    written = check(path, TEXTS)
    assert written.decode(written.encode("hello  wörld").ids) == "hello  wörld"


def test_byte_pairs_of_characters(pieces: tuple[list[str], list[str]], tmp_path: Path) -> None:
    tokens = [*BYTES, "<unk>", "<s>", "</s>", *pieces[0]]
    path = write_vocabulary(
        tmp_path / "tiny.gguf",
        model="gemma4",
        tokens=tokens,
        types=[*[BYTE] * 256, UNKNOWN, CONTROL, CONTROL, *[NORMAL] * (len(tokens) - 259)],
        merges=pieces[1],
        bos_token_id=257,
        eos_token_id=258,
    )
    check(path, TEXTS)
