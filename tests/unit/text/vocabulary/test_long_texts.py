"""Long texts are encoded in slices: the tokens are those of the whole, for every family's way to cut words."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from stoker.core.vocabulary import TokenType, Vocabulary
from stoker.text.vocabulary import VocabularyTokenizer, build_tokenizer
from stoker.text.vocabulary.byte_pairs import BYTE_LETTERS, BytePairEncoder
from stoker.text.vocabulary.word_rules import word_rule, word_rule_names
from tests.brief import examples
from tests.reference.tokenizer_corpus import CORPUS

_WHOLE = 1 << 30


@cache
def _vocabulary() -> Vocabulary:
    """Its merges reach over words, so that the tokens tell where words were cut."""
    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    model.train_from_iterator(
        ["".join(CORPUS)], trainers.BpeTrainer(vocab_size=3000, initial_alphabet=BYTE_LETTERS, show_progress=False)
    )
    tokens = sorted(model.get_vocab(), key=model.get_vocab().__getitem__)
    known = set(tokens)
    merges = [
        f"{token[:cut]} {token[cut:]}"
        for token in tokens
        for cut in range(1, len(token))
        if token[:cut] in known and token[cut:] in known
    ]
    tokens += [f"<0x{byte:02X}>" for byte in range(256)]
    return Vocabulary(model="gpt2", tokens=tokens, types=[1] * len(tokens), merges=merges)


def _encoder(name: str, slice_size: int) -> BytePairEncoder:
    rule = word_rule(name)
    assert rule is not None
    vocabulary = _vocabulary()
    token_ids = {text: token_id for token_id, text in enumerate(vocabulary.tokens)}
    return BytePairEncoder(vocabulary, token_ids, rule, slice_size=slice_size)


@cache
def _texts(seed: int) -> list[str]:
    """Words of all scripts in any order, long runs of one kind of character, and both in turn."""
    source = random.Random(seed)
    pieces = [text[at : at + 12] for text in CORPUS for at in range(0, len(text), 5)]
    mixed = "".join(source.choice(pieces) for _ in range(400))
    runs = "".join(source.choice(" \n\t\raZ7.é語'") * source.choice((1, 2, 3, 40, 300)) for _ in range(60))
    return [mixed, runs, mixed[:500] + runs[:900] + mixed[500:1000]]


@pytest.mark.parametrize("name", {word_rule(name): name for name in word_rule_names()}.values())
def test_slices_give_the_tokens_of_the_whole(name: str) -> None:
    whole, sliced = _encoder(name, _WHOLE), _encoder(name, 96)

    for text in [text for seed in range(examples(8)) for text in _texts(seed)]:
        assert sliced.encode([text]) == whole.encode([text])


def test_special_tokens_between_short_and_long_texts_stay_where_they_are() -> None:
    whole, sliced = _encoder("llama-bpe", _WHOLE), _encoder("llama-bpe", 96)
    text = "".join(CORPUS)
    fragments = [5, text[:50], text[50:60], 6, 7, text, 8, text[:95], text[:96], text[:97], 9]

    assert sliced.encode(fragments) == whole.encode(fragments)


def _byte_pairs() -> VocabularyTokenizer:
    """Nearly all models' vocabularies lack some control characters, whose texts vanish."""
    trained = _vocabulary()
    unused = {"\u0104", "\u0106"}  # the letters of bytes 4 and 6
    assert not any(unused & set(merge) for merge in trained.merges or ())
    tokens = [token for token in trained.tokens if token not in unused]
    return build_tokenizer(
        Vocabulary(
            model="gpt2",
            pre_tokenizer="llama-bpe",
            tokens=tokens,
            types=[TokenType.NORMAL] * len(tokens),
            merges=trained.merges,
        )
    )


def _scored_pairs() -> VocabularyTokenizer:
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁▁▁▁", "a", "b", "ab", "▁ab", "=", "====="]
    types = [TokenType.UNKNOWN, *[TokenType.BYTE] * 256, *[TokenType.NORMAL] * (len(tokens) - 257)]
    scores = [-float(number) for number in range(len(tokens))]
    return build_tokenizer(Vocabulary(model="llama", tokens=tokens, types=types, scores=scores))


@pytest.mark.parametrize("build", [_byte_pairs, _scored_pairs])
def test_fewest_tokens_are_never_more_than_there_are(build: Callable[[], VocabularyTokenizer]) -> None:
    tokenizer = build()
    texts = [*CORPUS, *_texts(0), "\4" * 5000, "\6x\4" * 500, "=" * 5000, " " * 5000, "a" * 5000]

    assert all(tokenizer.fewest_tokens(text) <= len(tokenizer.encode(text)) for text in texts)
    assert tokenizer.fewest_tokens("a" * 1_000_000) > 100


def test_fewest_tokens_leave_out_spaces_where_tokens_strip_them() -> None:
    tokens = ["▁", "a", *(f"<0x{byte:02X}>" for byte in range(256)), "<mask>"]
    types = [TokenType.NORMAL, TokenType.NORMAL, *[TokenType.BYTE] * 256, TokenType.CONTROL]
    tokenizer = build_tokenizer(
        Vocabulary(model="llama", tokens=tokens, types=types, scores=[0.0] * len(tokens), model_name="phi-3")
    )
    text = "<mask>" + " " * 10_000 + "a"

    assert tokenizer.fewest_tokens(text) <= len(tokenizer.encode(text))


def test_fewest_tokens_of_word_pieces_are_unknown() -> None:
    tokens = ["[UNK]", "▁a"]
    types = [TokenType.UNKNOWN, TokenType.NORMAL]
    tokenizer = build_tokenizer(Vocabulary(model="bert", tokens=tokens, types=types, add_bos=False, add_sep=False))

    assert tokenizer.fewest_tokens("x" * 100_000) == 0
