"""What is not supported, and what contradicts itself, is said at once and by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from stoker.core.vocabulary import TokenType, Vocabulary
from stoker.errors import ModelFileInvalid, ModelUnsupported
from stoker.text.vocabulary import VocabularyTokenizer, build_tokenizer
from stoker.text.vocabulary.byte_pairs import BYTE_LETTERS


def build(tokens: list[str], types: Sequence[int] | None = None, **values: Any) -> VocabularyTokenizer:
    kinds = types or [TokenType.NORMAL] * len(tokens)
    return build_tokenizer(Vocabulary(tokens=tokens, types=kinds, **values))


@pytest.mark.parametrize("model", ["rwkv", "plamo2", "hybriddna", "none", "never heard of"])
def test_unknown_kinds_are_unsupported(model: str) -> None:
    with pytest.raises(ModelUnsupported, match=model):
        build(["a"], model=model)


def test_unknown_pre_tokenizers_are_unsupported() -> None:
    with pytest.raises(ModelUnsupported, match="`next-years-rule`") as failure:
        build([*BYTE_LETTERS], model="gpt2", pre_tokenizer="next-years-rule", merges=[])
    assert failure.value.fields["pre_tokenizer"] == "next-years-rule"


@pytest.mark.parametrize(("name", "is_told"), [("", True), ("gpt-2", False)])
def test_a_file_that_names_no_pre_tokenizer_is_an_old_one(
    name: str, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    build([*BYTE_LETTERS], model="gpt2", pre_tokenizer=name, merges=[])
    assert ("get the model converted anew" in caplog.text) == is_told


def test_byte_pairs_need_merges() -> None:
    with pytest.raises(ModelFileInvalid, match="merges"):
        build([*BYTE_LETTERS], model="gpt2", pre_tokenizer="gpt-2")


def test_characters_need_tokens_for_bytes() -> None:
    with pytest.raises(ModelFileInvalid, match="256 bytes"):
        build(["a", "b", "<0x00>"], model="gemma4", merges=[], special_ids={"bos": 0})


def test_a_token_in_front_of_every_prompt_must_exist() -> None:
    with pytest.raises(ModelFileInvalid, match="adds `bos`"):
        build(["a"], model="llama")
    with pytest.raises(ModelFileInvalid, match="adds `sep`"):
        build(["a", "b"], model="bert", special_ids={"bos": 1})
    with pytest.raises(ModelFileInvalid, match="adds `eos`"):
        build(["a", "b"], model="llama", add_eos=True)


def test_ids_that_name_no_token_are_as_if_not_given() -> None:
    tokenizer = build(["a", "b", "c"], model="llama", special_ids={"eos": 3, "unk": -1, "bos": 2})
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.special.ids["unk"]) == (2, 2, 0)


def test_an_unlikely_byte_token_has_a_byte() -> None:
    tokenizer = build(["<0x41>", "<0x", "<0xZZ>"], [TokenType.BYTE] * 3, model="llama")
    assert [tokenizer.token_bytes(token_id) for token_id in range(3)] == [b"A", b"\0", b"\0"]


def test_tokens_of_unknown_type_add_nothing() -> None:
    tokenizer = build(["a", "b"], [TokenType.UNUSED, 99], model="llama")
    assert [tokenizer.token_bytes(n, render_special=True) for n in range(2)] == [b"", b""]


def test_tokens_that_are_no_text_are_still_bytes() -> None:
    tokenizer = build(["\udcff\udcfe", "a", "b"], model="llama", add_space_prefix=False)
    assert tokenizer.token_bytes(0) == b"\xff\xfe"
    assert tokenizer.encode("ab") == [1, 2]


@pytest.mark.parametrize("merge", ["a", "a ", " a", "a b c", "", "\udcff b"])
def test_merges_that_can_never_apply_are_ignored(merge: str) -> None:
    tokenizer = build([*BYTE_LETTERS, "ab"], model="gpt2", merges=[merge, "a b"])
    assert tokenizer.encode("ab") == [256]


def test_of_two_equal_merges_the_first_counts() -> None:
    merges = ["a b", "b c", "a b"]
    assert build([*BYTE_LETTERS, "ab", "bc"], model="gpt2", merges=merges).encode("abc") == [256, ord("c")]
