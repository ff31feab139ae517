"""Over whole real vocabularies, the detokenizer equals decoding everything at once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.backends.llama.tokenizer import LlamaTokenizer
from stoker.backends.llama.weights import LoadOptions, load_weights
from stoker.text.detokenizer import Detokenizer
from stoker.text.tokenizer import Tokenizer
from tests.brief import mostly_slow

TEXTS = ["Grüße, 世界! 😀👩‍👩‍👧‍👦🏳️‍🌈", "a  b\n\n\tc\u00a0\u200b", "नमस्ते — ﷽ 𝔘𝔫𝔦", "e\u0301 \U0010ffff \ufffd"]


@pytest.fixture(scope="module", params=mostly_slow(["smollm2_path", "gemma3_path"], ["smollm2_path"]))
def tokenizer(request: pytest.FixtureRequest) -> Iterator[Tokenizer]:
    path: Path = request.getfixturevalue(request.param)
    tokenizer = LlamaTokenizer(load_weights(path, LoadOptions()))
    yield tokenizer
    tokenizer.close()


def check(tokenizer: Tokenizer, token_ids: list[int]) -> str:
    detokenizer = Detokenizer(tokenizer.token_bytes)
    pieces = [detokenizer.push(token_id) for token_id in token_ids]
    text = "".join(pieces) + detokenizer.flush()
    assert text == b"".join(map(tokenizer.token_bytes, token_ids)).decode("utf-8", "replace")
    return text


def test_every_token_in_two_orders(tokenizer: Tokenizer) -> None:
    token_ids = list(range(tokenizer.vocab_size))
    check(tokenizer, token_ids)
    random.Random(0).shuffle(token_ids)
    check(tokenizer, token_ids)


def test_every_token_alone(tokenizer: Tokenizer) -> None:
    for token_id in range(tokenizer.vocab_size):
        detokenizer = Detokenizer(tokenizer.token_bytes)
        alone = tokenizer.token_bytes(token_id).decode("utf-8", "replace")
        assert detokenizer.push(token_id) + detokenizer.flush() == alone


@pytest.mark.parametrize("text", TEXTS)
def test_text_survives_the_way_there_and_back(tokenizer: Tokenizer, text: str) -> None:
    assert check(tokenizer, tokenizer.encode(text)).endswith(text)
