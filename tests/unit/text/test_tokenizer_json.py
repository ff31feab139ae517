"""Tokenizers from `tokenizer.json`: bytes of single tokens, special tokens, ends, and what goes in front."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from stoker.errors import InvalidInput, ModelFileInvalid, ModelUnsupported
from stoker.export.tokenizer_json import tokenizer_json
from stoker.models.gguf import read_gguf
from stoker.models.vocabulary import read_vocabulary
from stoker.text.detokenizer import Detokenizer
from stoker.text.tokenizer_json import JSONTokenizer, TokenizerHints, read_hints
from stoker.text.vocabulary import build_tokenizer

BYTES = {f"<0x{byte:02X}>": byte + 3 for byte in range(256)}


def byte_level(**changes: Any) -> Tokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: index for index, letter in enumerate(letters)}
    found = Tokenizer(models.BPE(vocab={**vocabulary, "Ġa": 256}, merges=[("Ġ", "a")]))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    found.add_special_tokens([AddedToken(text, special=True) for text in ("<bos>", "<|im_end|>", "</s>")])
    found.add_tokens([AddedToken("<think>", special=False)])
    for name, value in changes.items():
        setattr(found, name, value)
    return found


def spaced() -> Tokenizer:
    """As Llama 2 and Gemma spell them."""
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, **BYTES, "▁": 259, "a": 260, "▁a": 261}
    found = Tokenizer(models.BPE(vocab=vocabulary, merges=[("▁", "a")], unk_token="<unk>", byte_fallback=True))
    found.normalizer = normalizers.Replace(" ", "▁")
    found.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    found.add_special_tokens([AddedToken(text, special=True) for text in ("<unk>", "<s>", "</s>")])
    return found


def make(tokenizer: Tokenizer, **hints: Any) -> JSONTokenizer:
    return JSONTokenizer(tokenizer.to_str(), TokenizerHints(**hints))


@pytest.mark.parametrize("source", [byte_level, spaced])
def test_pieces_are_the_text(source: Any) -> None:
    tokenizer = make(source())
    text = "a a  ä€😀\n\x00é"
    token_ids = tokenizer.encode(text)
    assert b"".join(tokenizer.token_bytes(token_id) for token_id in token_ids) == text.encode()
    detokenizer = Detokenizer(tokenizer.token_bytes)
    assert "".join([*(detokenizer.push(token_id) for token_id in token_ids), detokenizer.flush()]) == text


def test_one_token_keeps_its_space_and_half_a_character_is_bytes() -> None:
    """Weakness 6 of 1.3: tokens that are decoded one by one lose spaces and break characters."""
    for tokenizer, with_space in ((make(byte_level()), 256), (make(spaced()), 261)):
        assert tokenizer.token_bytes(with_space) == b" a"
        assert [tokenizer.token_bytes(token_id) for token_id in tokenizer.encode("é")] == [b"\xc3", b"\xa9"]


def test_special_tokens() -> None:
    tokenizer = make(byte_level())
    bos, end, think = 257, 258, 260
    assert tokenizer.encode("<bos>x<think>") == [bos, tokenizer.encode("x")[0], think]
    assert bos not in tokenizer.encode("<bos>x", parse_special=False)
    assert think in tokenizer.encode("<think>", parse_special=False)  # a word that was added, not a control token
    assert (tokenizer.token_bytes(end), tokenizer.token_bytes(end, render_special=True)) == (b"", b"<|im_end|>")
    assert tokenizer.token_bytes(think) == b"<think>"
    assert (tokenizer.vocab_size, tokenizer.num_words) == (261, 257)


def test_ids_of_no_token_add_nothing() -> None:
    tokenizer = make(byte_level())
    assert tokenizer.token_bytes(261) == tokenizer.token_bytes(10**6) == b""
    with pytest.raises(InvalidInput):
        tokenizer.token_bytes(-1)


@pytest.mark.parametrize("form", ["template", "pair"])
def test_bos_comes_from_the_post_processor(form: str) -> None:
    """S1-12, in both forms."""
    source = byte_level()
    source.post_processor = (
        processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 257)])
        if form == "template"
        else processors.Sequence(
            [processors.ByteLevel(), processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 257)])]
        )
    )
    tokenizer = make(source)
    assert (tokenizer.bos_token_id, tokenizer.adds_bos) == (257, True)
    assert make(source, adds_bos=False).adds_bos is False


def test_bos_comes_from_other_files_if_need_be() -> None:
    assert make(byte_level()).bos_token_id is None
    assert make(byte_level(), bos_token_id=3).bos_token_id == 3
    assert make(byte_level(), bos_token_id=3000).bos_token_id is None
    found = make(byte_level(), bos_token_id=3, bos_token="<bos>", adds_bos=True)
    assert (found.bos_token_id, found.adds_bos) == (257, True)


def test_ends_of_generation() -> None:
    assert make(byte_level()).eog_token_ids() == {258, 259}
    assert make(byte_level(), eos_token_ids=frozenset({7, 5000})).eog_token_ids() == {7, 258, 259}
    assert make(byte_level(), bos_token="</s>").eog_token_ids() == {258}
    assert make(byte_level(), bos_token="</s>", eos_token="</s>").eog_token_ids() == {258, 259}
    assert make(byte_level(), eos_token="</s>").eos_token_id == 259


def test_hints_of_tokenizer_config() -> None:
    config = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "add_bos_token": False}
    assert read_hints(config, bos_token_id=1, eos_token_ids=frozenset({2})) == TokenizerHints(
        bos_token="<s>", bos_token_id=1, eos_token="</s>", adds_bos=False, eos_token_ids=frozenset({2})
    )
    assert read_hints({"bos_token": None, "add_bos_token": 1}) == TokenizerHints()


def test_lone_surrogates_are_refused() -> None:
    with pytest.raises(InvalidInput):
        make(byte_level()).encode("a\ud800")


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"model": {"type": "Odd"}}'])
def test_what_is_no_tokenizer_is_told(text: str) -> None:
    with pytest.raises(ModelFileInvalid, match=r"tokenizer\.json cannot be used"):
        JSONTokenizer(text, TokenizerHints())


def test_an_unknown_decoder_is_named() -> None:
    with pytest.raises(ModelUnsupported, match=r"decoder of tokenizer\.json \(BPEDecoder\)"):
        make(byte_level(decoder=decoders.BPEDecoder()))


def test_a_real_tokenizer_agrees_with_the_one_of_the_gguf_file(smollm2_path: Path) -> None:
    with read_gguf(smollm2_path) as gguf:
        vocabulary = read_vocabulary(gguf)
    expected = build_tokenizer(vocabulary)
    found = JSONTokenizer(msgspec.json.encode(tokenizer_json(vocabulary, expected.special)).decode(), TokenizerHints())
    text = "<|im_start|>user\nHello, wörld! 12345  🎉 def f(x):\n\treturn x<|im_end|>\n"
    for parse_special in (True, False):
        assert found.encode(text, parse_special=parse_special) == expected.encode(text, parse_special=parse_special)
    pieces = range(0, found.vocab_size, 37)
    assert [found.token_bytes(i) for i in pieces] == [expected.token_bytes(i) for i in pieces]
