"""Byte-pair encoding with the merges of the file: words are cut and merged by `tokenizers`, without the GIL."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, filterfalse

from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

from stoker.core.vocabulary import Vocabulary
from stoker.errors import ModelFileInvalid
from stoker.text.vocabulary.fragments import Fragment
from stoker.text.vocabulary.unicode_classes import compile_pattern
from stoker.text.vocabulary.word_rules import WordRule

_NEWLINES = re.compile(r"(\n+)")


def _letters_of_bytes() -> list[str]:
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(visible)]
    letters = {byte: chr(byte) for byte in visible} | {byte: chr(256 + n) for n, byte in enumerate(hidden)}
    return [letters[byte] for byte in range(256)]


BYTE_LETTERS = _letters_of_bytes()
"""GPT-2's spelling of bytes: the letter of each of the 256, by byte."""


class BytePairEncoder:
    """Satisfies `FragmentEncoder`.

    libllama also merges to words that are no tokens, and then looks up their bytes. `tokenizers` knows tokens only:
    such words get ids behind the real ones, which never leave this class.

    Args:
        token_ids: ids by text.

    Raises:
        ModelFileInvalid: there are no merges, or no tokens for bytes where they are needed.
    """

    def __init__(self, vocabulary: Vocabulary, token_ids: Mapping[str, int], rule: WordRule) -> None:
        if vocabulary.merges is None and vocabulary.pre_tokenizer != "kimi-k2":
            raise ModelFileInvalid("the vocabulary has no `tokenizer.ggml.merges`")
        if not rule.is_byte_level and not all(f"<0x{byte:02X}>" in token_ids for byte in range(256)):
            raise ModelFileInvalid("the vocabulary has no token for some of the 256 bytes")
        self._token_ids = token_ids
        self._num_tokens = len(vocabulary.tokens)
        self._is_byte_level = rule.is_byte_level
        self._keeps_newline_runs = rule.keeps_newline_runs
        merges = _pairs(vocabulary.merges or ())
        known = _unicode_tokens(token_ids)
        needed = chain(BYTE_LETTERS if rule.is_byte_level else (), chain.from_iterable(merges), map("".join, merges))
        unreal = sorted(set(filterfalse(known.__contains__, needed)))
        self._bytes_of_unreal = [self._bytes(text) for text in unreal]
        model = models.BPE(
            known | {text: self._num_tokens + n for n, text in enumerate(unreal)},
            merges,
            ignore_merges=rule.ignores_merges,
            byte_fallback=not rule.is_byte_level,
        )
        self._tokenizer = Tokenizer(model)
        self._tokenizer.pre_tokenizer = _word_cutter(rule)

    def encode(self, fragments: Sequence[Fragment]) -> list[int]:
        if not self._is_byte_level:
            fragments = [*self._escaped(fragments)]
        texts = [fragment for fragment in fragments if isinstance(fragment, str)]
        encoded = iter(self._tokenizer.encode_batch_fast(texts, add_special_tokens=False))
        found: list[int] = []
        for fragment in fragments:
            found += [fragment] if isinstance(fragment, int) else next(encoded).ids
        return self._real(found) if self._bytes_of_unreal else found

    def _escaped(self, fragments: Sequence[Fragment]) -> Iterator[Fragment]:
        for fragment in fragments:
            if isinstance(fragment, int):
                yield fragment
            elif not self._keeps_newline_runs:
                yield fragment.replace(" ", "▁")
            else:
                for line in _NEWLINES.split(fragment.replace(" ", "▁")):
                    yield self._token_ids.get(line, line) if line.startswith("\n") else line

    def _bytes(self, text: str) -> list[int]:
        raw = text.encode(errors="surrogateescape")
        found = (self._token_ids.get(bytes((byte,)).decode(errors="surrogateescape")) for byte in raw)
        return [token_id for token_id in found if token_id is not None]

    def _real(self, token_ids: list[int]) -> list[int]:
        found: list[int] = []
        for token_id in token_ids:
            unreal = token_id - self._num_tokens
            found += [token_id] if unreal < 0 else self._bytes_of_unreal[unreal]
        return found


def _pairs(merges: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs in order; of two equal ones the first counts, and one with a space in it never applies."""
    if not _is_unicode("".join(merges)):
        merges = [merge for merge in merges if _is_unicode(merge)]
    parts = [merge.partition(" ") for merge in dict.fromkeys(merges)]
    return [(left, right) for left, _, right in parts if left and right and " " not in right]


def _unicode_tokens(token_ids: Mapping[str, int]) -> dict[str, int]:
    """Those that `tokenizers` can be told. One look at all of them is much quicker than one at each."""
    if _is_unicode("".join(token_ids)):
        return dict(token_ids)
    return {text: token_id for text, token_id in token_ids.items() if _is_unicode(text)}


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _word_cutter(rule: WordRule) -> PreTokenizer:
    cutters: list[PreTokenizer] = [
        pre_tokenizers.Split(compile_pattern(pattern), behavior="isolated") for pattern in rule.patterns
    ]
    if rule.is_byte_level:
        cutters.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return pre_tokenizers.Sequence(cutters)
