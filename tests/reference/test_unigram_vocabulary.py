"""Vocabularies of SentencePiece's unigram kind: our own tokenizer equals libllama's, token for token."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from tests.character_maps import compiled
from tests.reference.tokenizer_corpus import CORPUS, random_texts
from tests.reference.vocabulary_files import CONTROL, NORMAL, UNKNOWN, USER_DEFINED, LibllamaVocabulary, our_tokenizer
from tests.reference.vocabulary_files import write_vocabulary as write

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
CHARACTERS = [*"½ⅷﬁﬀｆｕｌ①ÅÖé…㍿Ａ\u3000\u00a0\t\n\u2028"]
REPLACED = {
    **{character: unicodedata.normalize("NFKC", character).replace("\n", " ") for character in CHARACTERS},
    "e\u0301": "é", "\t": " ", "\n": " ", "\r\n": " ", "\u200b": "", "q\u0302": "Q", "xyz": "x",
}  # fmt: skip
TEXTS = [
    *CORPUS,
    *random_texts(60, seed=4),
    "ﬁne ﬀ ｆｕｌｌ ½ … ① e\u0301 q\u0302 q xyz xy \u3000x ㍿ Ａ",
    " in front", "behind ", "a\tb\nc  d\r\ne", "", "   ", "<s> x<mask>y </s>", "a\u200bb", "zu Hause▁▁x", "長" * 70,
]  # fmt: skip


def pieces() -> list[tuple[str, float]]:
    tokenizer: Any = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer: Any = trainers.UnigramTrainer(vocab_size=600, special_tokens=[], unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator([text for text in CORPUS if text.strip()] * 3, trainer)
    found = json.loads(tokenizer.to_str())["model"]["vocab"]
    return [(text, score) for text, score in found if text not in SPECIAL]


def write_unigram(path: Path, *, further: tuple[str, ...] = (), **keys: Any) -> Path:
    found = pieces()
    tokens = [*SPECIAL, *(text for text, _ in found), *further, "<mask>"]
    scores = [0.0] * 4 + [score for _, score in found] + [-3.0] * len(further) + [0.0]
    types = [CONTROL, CONTROL, CONTROL, UNKNOWN, *[NORMAL] * len(found), *[USER_DEFINED] * len(further), CONTROL]
    ids = {"bos_token_id": 0, "eos_token_id": 2, "unknown_token_id": 3, "seperator_token_id": 2, "padding_token_id": 1}
    values: dict[str, Any] = {**ids, "add_bos_token": True, "add_eos_token": True, **keys}
    return write(path, model="t5", tokens=tokens, scores=scores, types=types, architecture="bert", **values)


@pytest.mark.parametrize("merges", [True, False])
@pytest.mark.parametrize("adds_prefix", [True, False])
@pytest.mark.parametrize("has_map", [True, False])
def test_tokens_are_libllamas(tmp_path: Path, merges: bool, adds_prefix: bool, has_map: bool) -> None:
    keys: dict[str, Any] = {"precompiled_charsmap": compiled(REPLACED)} if has_map else {}
    flags = {"remove_extra_whitespaces": merges, "add_space_prefix": adds_prefix}
    path = write_unigram(tmp_path / "m.gguf", further=("aaa", "b▁c"), **flags, **keys)
    ours, reference = our_tokenizer(path), LibllamaVocabulary(path)
    for text in TEXTS:
        for parse_special in (True, False):
            expected = reference.encode(text, parse_special=parse_special)
            assert ours.encode(text, parse_special=parse_special) == expected, repr(text)
            assert ours.encode(text, parse_special=parse_special) == expected, "the second time"
    special = ours.special
    assert (special.adds_bos, special.adds_eos, special.adds_sep) == reference.adds()
    for token_id in range(reference.size):
        assert ours.token_bytes(token_id) == reference.token_bytes(token_id, render_special=False)
    reference.close()


def test_a_file_that_says_nothing_of_ends_has_them(tmp_path: Path) -> None:
    path = write_unigram(tmp_path / "m.gguf", add_bos_token=None, add_eos_token=None)
    reference = LibllamaVocabulary(path)
    special = our_tokenizer(path).special
    assert (special.adds_bos, special.adds_eos, special.adds_sep) == reference.adds() == (False, True, False)
    reference.close()
