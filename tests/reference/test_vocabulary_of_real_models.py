"""Whole real vocabularies, both ways: our own tokenizer equals libllama's, token for token and byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.errors import InvalidInput
from stoker.text.detokenizer import Detokenizer
from stoker.text.tokenizer import Tokenizer, encode_prompt
from stoker.text.vocabulary import VocabularyTokenizer
from tests.reference.tokenizer_corpus import CODE, CORPUS, PROSE, random_texts, repository_text
from tests.reference.vocabulary_files import LibllamaVocabulary, our_tokenizer

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Pair:
    ours: VocabularyTokenizer
    reference: LibllamaVocabulary

    def check(self, text: str) -> None:
        for parse_special in (True, False):
            expected = self.reference.encode(text, parse_special=parse_special)
            assert self.ours.encode(text, parse_special=parse_special) == expected, repr(text)


def open_pair(path: Path) -> Iterator[Pair]:
    reference = LibllamaVocabulary(path)
    yield Pair(our_tokenizer(path), reference)
    reference.close()


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Iterator[Pair]:
    yield from open_pair(smollm2_path)


@pytest.fixture(scope="module")
def gemma3(gemma3_path: Path) -> Iterator[Pair]:
    yield from open_pair(gemma3_path)


@pytest.fixture(params=["smollm2", "gemma3"])
def pair(request: pytest.FixtureRequest) -> Pair:
    return request.getfixturevalue(request.param)


def test_facts(pair: Pair) -> None:
    ours, reference = pair.ours, pair.reference
    assert ours.vocab_size == reference.size
    assert ours.eog_token_ids() == reference.eog_token_ids()
    assert (ours.adds_bos, ours.special.adds_eos, ours.special.adds_sep) == reference.adds()
    roles = {role: token_id for role, token_id in ours.special.ids.items() if role not in ("unk", "eom", "eot")}
    expected = reference.special_ids()
    expected.pop("eot", None)  # of several it is whichever libllama's hash table lists first
    assert roles == expected


def test_every_token_adds_the_same_bytes(pair: Pair) -> None:
    for render_special in (False, True):
        ours = [pair.ours.token_bytes(i, render_special=render_special) for i in range(pair.reference.size)]
        expected = [pair.reference.token_bytes(i, render_special=render_special) for i in range(pair.reference.size)]
        assert ours == expected


def pieces_in_turn(ours: VocabularyTokenizer, ids: list[int], count: int, between: bytes) -> Iterator[str]:
    """Short texts: libllama's time grows with the square of the special tokens in a text."""
    for start in range(0, len(ids), count):
        pieces = [ours.token_bytes(i, render_special=True) for i in ids[start : start + count]]
        yield between.join(pieces).decode(errors="replace")


def test_the_text_of_every_token_becomes_the_same_tokens(pair: Pair) -> None:
    for text in pieces_in_turn(pair.ours, [*range(pair.reference.size)], 100, b" "):
        assert pair.ours.encode(text, parse_special=False) == pair.reference.encode(text, parse_special=False)


def test_the_text_of_every_special_token_becomes_that_token(pair: Pair) -> None:
    ids = [i for i in pair.ours.special.parsed_ids if not pair.ours.token_bytes(i)]
    for number, text in enumerate(pieces_in_turn(pair.ours, ids, 50, b"x")):
        assert pair.ours.encode(text) == pair.reference.encode(text)
        assert pair.ours.encode(text)[::2] == ids[50 * number : 50 * number + 50]


@pytest.mark.parametrize("text", [*CORPUS, repository_text()], ids=range(len(CORPUS) + 1))
def test_corpus(pair: Pair, text: str) -> None:
    pair.check(text)


def test_random_texts(pair: Pair) -> None:
    for text in random_texts(300, seed=1):
        pair.check(text)


@pytest.mark.parametrize("space", ["", " ", "\n", "  \n\n "])
def test_special_tokens_within_text(pair: Pair, space: str) -> None:
    special = [pair.ours.token_bytes(i, render_special=True).decode() for i in pair.ours.special.parsed_ids]
    for text in PROSE[:2] + CODE[:2]:
        pair.check(space.join((text, *special[:40], text, *special[-20:], text[:5])))


@given(text=st.text(max_size=80))
@settings(deadline=None, max_examples=150)
def test_any_text_becomes_the_same_tokens_with_byte_pairs(smollm2: Pair, text: str) -> None:
    smollm2.check(text)


@given(text=st.text(alphabet=st.sampled_from("aeonst \n\t▁'1.<>|é世"), max_size=60))
@settings(deadline=None, max_examples=150)
def test_any_text_becomes_the_same_tokens_with_scores(gemma3: Pair, text: str) -> None:
    gemma3.check(text)


def test_broken_characters_come_back_as_replacements(pair: Pair) -> None:
    ids = pair.ours.encode("".join(PROSE))
    for start in range(0, len(ids), 7):
        detokenizer = Detokenizer(pair.ours.token_bytes)
        text = "".join(map(detokenizer.push, ids[start : start + 5])) + detokenizer.flush()
        raw = b"".join(pair.reference.token_bytes(i, render_special=False) for i in ids[start : start + 5])
        assert text == raw.decode(errors="replace")


def test_prompts_begin_with_the_token_that_the_model_wants(smollm2: Pair, gemma3: Pair) -> None:
    assert encode_prompt(smollm2.ours, "The capital of France is") == [504, 3575, 282, 4649, 314]
    assert encode_prompt(gemma3.ours, "<bos>The capital") == encode_prompt(gemma3.ours, "The capital") == [2, 818, 5279]


@pytest.mark.parametrize("text", ["\ud800", "half an emoji \ud83d, then text", "\udfff at the start"])
def test_lone_surrogates_cannot_be_encoded(pair: Pair, text: str) -> None:
    with pytest.raises(InvalidInput, match="lone surrogate") as failure:
        pair.ours.encode(text)
    assert failure.value.fields["position"] == next(i for i, c in enumerate(text) if "\ud800" <= c <= "\udfff")


@pytest.mark.parametrize("token_id", [-1, 2**31])
def test_ids_outside_of_the_vocabulary_have_no_bytes(pair: Pair, token_id: int) -> None:
    with pytest.raises(InvalidInput, match="outside the vocabulary"):
        pair.ours.token_bytes(token_id)


def test_threads_share_a_tokenizer(pair: Pair) -> None:
    tokenizer: Tokenizer = pair.ours
    texts = [f"{n} {text}" for n in range(3) for text in CORPUS]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(tokenizer.encode, texts))
    assert together == [tokenizer.encode(text) for text in texts]
