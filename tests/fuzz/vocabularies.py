"""Tokenizers of lists that contradict each other and themselves."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gguf import GGUFWriter

from stoker.models.gguf import read_gguf
from stoker.models.vocabulary import read_vocabulary
from stoker.text.vocabulary import build_tokenizer
from stoker.text.vocabulary.byte_pairs import BYTE_LETTERS
from tests.fuzz.model_files import FLOATS
from tests.gguf_values import write_values

TEXTS = (
    "",
    "Hello world",
    "a b  c\n\nd\t1234567",
    "\u00e9\u4e2d\u6587\U0001f600\u202e\0",
    "<s></s><|im_end|>",
    "a" * 5000,
)


def vocabulary_case(rng: random.Random, folder: Path) -> str:
    path = folder / "vocabulary.gguf"
    model = rng.choice(["gpt2", "llama", "bert", "gemma4", "gpt2", "t5"])
    tokens = _tokens(rng, model)
    size = len(tokens)
    share_odd = rng.choice([0, 0, 0.1])
    some: dict[str, Any] = {
        "scores": [rng.choice(FLOATS) if rng.random() < share_odd else -float(i) for i in range(_about(rng, size))],
        "token_type": [rng.choice([1, 1, 1, 2, 3, 4, 5, 6, 0, 99, -5]) for _ in range(_about(rng, size))],
        "merges": [_merge(rng, tokens) for _ in range(rng.choice([0, 1, 20, 300]))],
        "pre": rng.choice(["gpt-2", "llama-bpe", "qwen2", "", "no such", "gemma4", "tekken", "smollm", "deepseek-v3"]),
        **{
            f"{name}_token_id": rng.choice([0, 1, 2, size - 1, size, 2**31])
            for name in ("bos", "eos", "eot", "unknown", "seperator", "padding", "fim_pre", "mask")
            if rng.random() < 0.4
        },
        **{
            name: rng.random() < 0.5
            for name in ("add_bos_token", "add_eos_token", "add_sep_token", "add_space_prefix")
            if rng.random() < 0.4
        },
    }
    with suppress(ValueError, OverflowError, struct.error):  # the writer's
        _write_vocabulary(path, rng, model, tokens, some)
        with read_gguf(path) as file:
            tokenizer = build_tokenizer(read_vocabulary(file))
        for text in TEXTS:
            ids = tokenizer.encode(text, parse_special=rng.random() < 0.5)
            assert all(0 <= token_id < tokenizer.vocab_size for token_id in ids), "an id beyond the vocabulary"
            b"".join(tokenizer.token_bytes(token_id, render_special=True) for token_id in ids)
        for token_id in range(tokenizer.vocab_size):
            tokenizer.token_bytes(token_id)
        return "encoded"
    return "not written"


def _about(rng: random.Random, size: int) -> int:
    return size if rng.random() < 0.9 else rng.choice([0, 1, max(0, size - 1), size + 1])


def _tokens(rng: random.Random, model: str) -> list[str | bytes]:
    size = rng.choice([0, 1, 2, 300, 300, 300, 300, 300, 300])
    words = [*(f"<0x{byte:02X}>" for byte in range(256)), *BYTE_LETTERS] if rng.random() < 0.8 else []
    words = words[256:] if model == "gpt2" and rng.random() < 0.7 else words
    tokens: list[str | bytes] = [*words, "<s>", "</s>", "<|im_end|>", "<mask>"] if size > 2 else []
    letters = "abc \u2581\u0120<|>\n\u00e9\U0001f600()[]*+?\\^$"
    while len(tokens) < size + len(words):
        tokens.append("".join(rng.choice(letters) for _ in range(rng.choice([1, 1, 2, 3, 9, 200]))))
        if rng.random() < 0.01:
            tokens[-1] = rng.choice([b"\xff\xfe", b"\xed\xa0\x80", b"", b"\0", b"\xff", b"a" * 60_000])
    return tokens if rng.random() < 0.1 else [*dict.fromkeys(tokens)]


def _merge(rng: random.Random, tokens: list[str | bytes]) -> str | bytes:
    texts = [token for token in tokens if isinstance(token, str)] or ["a"]
    kind = rng.random()
    if kind < 0.8:
        return f"{rng.choice(texts)} {rng.choice(texts)}"
    return rng.choice(["", " ", "a", "a b c", "  ", "nothing nowhere", b"\xff \xfe", "\0 \0", "x" * 40_000 + " y"])


def _write_vocabulary(
    path: Path, rng: random.Random, model: str, tokens: list[str | bytes], some: Mapping[str, Any]
) -> None:
    path.unlink(missing_ok=True)
    writer = GGUFWriter(path, rng.choice(["llama", "nomic-bert-moe", "gpt-oss"]))
    writer.add_string("tokenizer.ggml.model", model)
    writer.add_string("general.name", rng.choice(["phi-3", "modern-bert", "x"]))
    if tokens:
        writer.add_array("tokenizer.ggml.tokens", tokens)
    kept = {f"tokenizer.ggml.{key}": value for key, value in some.items() if rng.random() >= 0.1 and value != []}
    write_values(writer, kept)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
