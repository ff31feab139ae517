"""libllama's tokenizers behind our protocol: what goes in comes out again, to the byte."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stoker.backends.llama import LlamaTokenizer
from stoker.backends.llama.weights import LoadOptions, load_weights
from stoker.errors import InvalidInput, ModelNotLoaded
from stoker.text.tokenizer import Tokenizer, encode_prompt

TRICKY = [
    "",
    " ",
    "   leading and trailing   ",
    "tabs\tand\nlines\r\n\n\n",
    "NUL \x00 in the middle, and at the end\x00",
    "control \x01\x02\x1b[31m\x7f\x85",
    "combining e\u0301, Zalgo t\u0337\u0334e\u0335",
    "日本語のテキスト。한국어 العربية עברית ไทย",
    "family 👨‍👩‍👧‍👦 flag 🇪🇺 𝔘𝔫𝔦",
    "\ufeffbyte order mark \ufffe \uffff \U0010ffff",
    "1234567890" * 20,
    "a" * 5000,
    "<0x41> is no byte, <|not_special|> neither",
]


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Iterator[LlamaTokenizer]:
    tokenizer = LlamaTokenizer(load_weights(smollm2_path, LoadOptions()))
    yield tokenizer
    tokenizer.close()


@pytest.fixture(scope="module")
def gemma3(gemma3_path: Path) -> Iterator[LlamaTokenizer]:
    tokenizer = LlamaTokenizer(load_weights(gemma3_path, LoadOptions()))
    yield tokenizer
    tokenizer.close()


def decode(tokenizer: Tokenizer, token_ids: list[int], *, render_special: bool = False) -> bytes:
    return b"".join(tokenizer.token_bytes(token_id, render_special=render_special) for token_id in token_ids)


@pytest.mark.parametrize("text", TRICKY)
@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_tricky_text_comes_out_as_it_went_in(model: str, text: str, request: pytest.FixtureRequest) -> None:
    tokenizer: LlamaTokenizer = request.getfixturevalue(model)
    assert decode(tokenizer, tokenizer.encode(text, parse_special=False)) == text.encode()


def test_facts_of_smollm2(smollm2: Tokenizer) -> None:
    assert (smollm2.vocab_size, smollm2.bos_token_id, smollm2.eos_token_id) == (49152, 1, 2)
    assert not smollm2.adds_bos
    assert encode_prompt(smollm2, "The capital of France is") == [504, 3575, 282, 4649, 314]


def test_facts_of_gemma3(gemma3: Tokenizer) -> None:
    assert (gemma3.vocab_size, gemma3.bos_token_id, gemma3.eos_token_id) == (262144, 2, 1)
    assert gemma3.adds_bos
    assert encode_prompt(gemma3, "<bos>The capital") == encode_prompt(gemma3, "The capital") == [2, 818, 5279]


def test_lower_blocks_are_the_spaces_of_sentencepiece(smollm2: LlamaTokenizer, gemma3: LlamaTokenizer) -> None:
    assert decode(smollm2, smollm2.encode("▁a ▁")) == "▁a ▁".encode()
    assert decode(gemma3, gemma3.encode("▁a ▁")) == b" a  "


def test_special_tokens_are_parsed_only_if_asked(smollm2: LlamaTokenizer) -> None:
    text = "<|im_start|>user\nhi<|im_end|>"
    parsed, plain = smollm2.encode(text), smollm2.encode(text, parse_special=False)
    assert (parsed[0], parsed[-1]) == (1, 2)
    assert 1 not in plain
    assert decode(smollm2, parsed) == b"user\nhi"
    assert decode(smollm2, parsed, render_special=True) == decode(smollm2, plain) == text.encode()


def test_end_of_generation_tokens_are_the_whole_set(smollm2: LlamaTokenizer, gemma3: LlamaTokenizer) -> None:
    assert {smollm2.token_bytes(t, render_special=True) for t in smollm2.eog_token_ids()} == {
        b"<|endoftext|>",
        b"<|im_end|>",
        b"<reponame>",
    }
    assert {1, 106} <= gemma3.eog_token_ids()


def test_every_token_has_bytes_and_they_are_remembered(smollm2: LlamaTokenizer) -> None:
    first = [smollm2.token_bytes(t, render_special=True) for t in range(smollm2.vocab_size)]
    assert all(first)
    assert [smollm2.token_bytes(t, render_special=True) for t in range(smollm2.vocab_size)] == first


@pytest.mark.parametrize("text", ["\ud800", "half an emoji \ud83d, then text", "\udfff at the start"])
def test_lone_surrogates_are_refused(smollm2: LlamaTokenizer, text: str) -> None:
    with pytest.raises(InvalidInput, match="lone surrogate") as failure:
        smollm2.encode(text)
    assert failure.value.fields["position"] == next(i for i, c in enumerate(text) if "\ud800" <= c <= "\udfff")


@pytest.mark.parametrize("token_id", [-1, 49152, 2**31])
def test_ids_outside_the_vocabulary_are_refused(smollm2: LlamaTokenizer, token_id: int) -> None:
    with pytest.raises(InvalidInput, match="outside the vocabulary"):
        smollm2.token_bytes(token_id)


def test_several_threads_get_what_one_gets(smollm2: LlamaTokenizer) -> None:
    texts = [f"{n} {text}" for n in range(5) for text in TRICKY]
    alone = [smollm2.encode(text) for text in texts]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(smollm2.encode, texts)) == alone


def test_a_closed_tokenizer_says_so(smollm2_path: Path) -> None:
    tokenizer = LlamaTokenizer(load_weights(smollm2_path, LoadOptions()))
    tokenizer.close()
    with pytest.raises(ModelNotLoaded):
        tokenizer.encode("text")
