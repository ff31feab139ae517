"""Vocabularies in files of their own: trained here, written as GGUF, and read by libllama as the reference."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from ctypes import c_char, string_at
from functools import cached_property
from pathlib import Path
from typing import Any

from gguf import GGUFWriter, TokenType
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from stoker.backends.llama.native import library
from stoker.models.gguf import read_gguf
from stoker.models.vocabulary import read_vocabulary
from stoker.text.vocabulary import VocabularyTokenizer, build_tokenizer
from tests.gguf_values import write_values


class LibllamaVocabulary:
    """A vocabulary as libllama has it."""

    def __init__(self, path: Path) -> None:
        self.lib = library()
        params = self.lib.llama_model_default_params()
        params.vocab_only = True
        self.model = self.lib.llama_model_load_from_file(os.fsencode(path), params)
        assert self.model, f"libllama does not take {path}"
        self.vocab = self.lib.llama_model_get_vocab(self.model)
        self._piece = (c_char * 4096)()

    def close(self) -> None:
        self.lib.llama_model_free(self.model)

    @cached_property
    def size(self) -> int:
        return self.lib.llama_vocab_n_tokens(self.vocab)

    def encode(self, text: str, *, parse_special: bool = True) -> list[int]:
        raw = text.encode()
        token_ids = (self.lib.llama_token * (2 * len(raw) + 16))()
        count = self.lib.llama_tokenize(self.vocab, raw, len(raw), token_ids, len(token_ids), False, parse_special)
        assert count >= 0
        return token_ids[:count]

    def token_bytes(self, token_id: int, *, render_special: bool) -> bytes:
        size = self.lib.llama_token_to_piece(self.vocab, token_id, self._piece, len(self._piece), 0, render_special)
        assert size >= 0
        return string_at(self._piece, size)

    def eog_token_ids(self) -> set[int]:
        return {token_id for token_id in range(self.size) if self.lib.llama_vocab_is_eog(self.vocab, token_id)}

    def special_ids(self) -> dict[str, int]:
        roles = ("bos", "eos", "eot", "sep", "pad", "mask", "fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep")
        found = {role: getattr(self.lib, f"llama_vocab_{role}")(self.vocab) for role in (*roles, "fim_sep")}
        return {role: token_id for role, token_id in found.items() if token_id >= 0}

    def adds(self) -> tuple[bool, bool, bool]:
        lib = self.lib
        return (
            lib.llama_vocab_get_add_bos(self.vocab),
            lib.llama_vocab_get_add_eos(self.vocab),
            lib.llama_vocab_get_add_sep(self.vocab),
        )


def our_tokenizer(path: Path) -> VocabularyTokenizer:
    with read_gguf(path) as gguf:
        return build_tokenizer(read_vocabulary(gguf))


def write_vocabulary(
    path: Path,
    *,
    model: str,
    tokens: Sequence[str | bytes],
    pre: str | None = None,
    merges: Sequence[str] | None = None,
    scores: Sequence[float] | None = None,
    types: Sequence[int] | None = None,
    architecture: str = "llama",
    name: str = "tiny",
    **values: Any,
) -> Path:
    """A GGUF file with nothing but a vocabulary. `values` are further keys after `tokenizer.ggml.`."""
    writer = GGUFWriter(path, architecture)
    writer.add_name(name)
    writer.add_tokenizer_model(model)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list([token.encode() if isinstance(token, str) else token for token in tokens])
    if merges is not None:
        writer.add_token_merges(list(merges))
    if scores is not None:
        writer.add_token_scores(list(scores))
    if types is not None:
        writer.add_token_types([int(kind) for kind in types])
    write_values(writer, {f"tokenizer.ggml.{key.replace('__', '.')}": value for key, value in values.items()})
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def train_byte_pairs(texts: Sequence[str], vocab_size: int) -> tuple[list[str], list[str]]:
    """Tokens and merges of a byte-level BPE that never cuts into words: so every cut that is made later shows.

    Most lines of `texts` become few tokens, which reach over spaces, digits and punctuation.
    """
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return _train(texts, vocab_size, alphabet, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))


def train_pieces(texts: Sequence[str], vocab_size: int) -> tuple[list[str], list[str]]:
    """The same on characters, with `▁` for a space; merges do not reach over newlines."""
    escaped = [line for text in texts for line in text.replace(" ", "▁").split("\n")]
    return _train(escaped, vocab_size, [], None)


def _train(
    texts: Sequence[str], vocab_size: int, alphabet: list[str], cutter: pre_tokenizers.PreTokenizer | None
) -> tuple[list[str], list[str]]:
    tokenizer = Tokenizer(models.BPE())
    if cutter is not None:
        tokenizer.pre_tokenizer = cutter
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, min_frequency=1, initial_alphabet=alphabet, show_progress=False
    )
    # libllama takes tokens for C strings: they cannot hold a NUL.
    tokenizer.train_from_iterator((text.replace("\0", "") for text in texts), trainer)
    tokens = [text for text, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]
    return tokens, [" ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]


NORMAL, CONTROL, USER_DEFINED, BYTE, UNKNOWN = (
    TokenType.NORMAL,
    TokenType.CONTROL,
    TokenType.USER_DEFINED,
    TokenType.BYTE,
    TokenType.UNKNOWN,
)
