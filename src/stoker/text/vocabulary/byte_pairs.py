"""Byte-pair encoding (BPE) with the merges of the file. The library `tokenizers` splits and merges without the GIL."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, filterfalse

from tokenizers import Encoding, Tokenizer, models, pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

from stoker.core.vocabulary import Vocabulary
from stoker.errors import ModelFileInvalid
from stoker.text.vocabulary.fragments import Fragment
from stoker.text.vocabulary.unicode_classes import compile_pattern
from stoker.text.vocabulary.word_rules import WordRule

_NEWLINES = re.compile(r"(\n+)")
SLICE = 1 << 16
"""Number of characters that are encoded at once. `tokenizers` needs up to 400 bytes of memory for each."""
_MARGIN = 16
"""Number of words at the end of a slice that the following text might split differently."""


def _letters_of_bytes() -> list[str]:
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(visible)]
    letters = {byte: chr(byte) for byte in visible} | {byte: chr(256 + n) for n, byte in enumerate(hidden)}
    return [letters[byte] for byte in range(256)]


BYTE_LETTERS = _letters_of_bytes()
"""GPT-2's spelling of bytes: the letter for each of the 256 bytes, by byte."""


class BytePairEncoder:
    """The BPE encoder of one vocabulary. Satisfies `FragmentEncoder`.

    libllama also applies merges whose result is not a token, and then looks up the bytes of the result. `tokenizers`
    supports only tokens, so such results get ids above the real ones, which never leave this class.

    Args:
        vocabulary: the vocabulary with its merges.
        token_ids: token ids by text.
        rule: how text is split into words.
        slice_size: number of characters at a time in which longer texts are encoded, if their words allow it. The
            tokens are the same.

    Raises:
        ModelFileInvalid: the vocabulary has no merges, or lacks tokens for bytes that it needs.
    """

    def __init__(
        self, vocabulary: Vocabulary, token_ids: Mapping[str, int], rule: WordRule, *, slice_size: int = SLICE
    ) -> None:
        if vocabulary.merges is None and vocabulary.pre_tokenizer != "kimi-k2":
            raise ModelFileInvalid("the vocabulary has no `tokenizer.ggml.merges`")
        if not rule.is_byte_level and not all(f"<0x{byte:02X}>" in token_ids for byte in range(256)):
            raise ModelFileInvalid("the vocabulary has no token for some of the 256 bytes")
        self._token_ids = token_ids
        self._slice_size = slice_size
        self._num_tokens = len(vocabulary.tokens)
        self._is_byte_level = rule.is_byte_level
        self._keeps_newline_runs = rule.keeps_newline_runs
        self._looks_far_ahead = rule.looks_far_ahead
        merges = _pairs(vocabulary.merges or ())
        known = _unicode_tokens(token_ids)
        needed = chain(BYTE_LETTERS if rule.is_byte_level else (), chain.from_iterable(merges), map("".join, merges))
        unreal = sorted(set(filterfalse(known.__contains__, needed)))
        self._bytes_of_unreal = [self._bytes(text) for text in unreal]
        self.lost_characters = _lost_characters(unreal)
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
        found: list[int] = []
        for run in _runs(fragments, self._slice_size):
            texts = [fragment for fragment in run if isinstance(fragment, str)]
            if len(texts) == 1 and len(texts[0]) > self._slice_size:
                self._append_slices(texts[0], found)
                continue
            encoded = iter(self._tokenizer.encode_batch_fast(texts, add_special_tokens=False))
            for fragment in run:
                found += [fragment] if isinstance(fragment, int) else next(encoded).ids
        return self._real(found) if self._bytes_of_unreal else found

    def _append_slices(self, text: str, found: list[int]) -> None:
        """Encodes a long text in slices. Words are split from left to right, so encoding can resume after any word."""
        begin, size = 0, self._slice_size
        while len(text) - begin > size:
            part = text[begin : begin + size]
            encoding = self._tokenizer.encode(part, add_special_tokens=False)
            num_settled, end = self._settled(encoding, part)
            if not num_settled:
                size *= 2  # the slice has only a few long words
                continue
            found += encoding.ids[:num_settled]
            begin, size = begin + end, self._slice_size
        found += self._tokenizer.encode(text[begin:], add_special_tokens=False).ids

    def _settled(self, encoding: Encoding, text: str) -> tuple[int, int]:
        """The number of tokens that no following text can change, and the index of the next word's first character."""
        last_word = encoding.token_to_word(len(encoding.ids) - 1) if encoding.ids else None
        for word in range((last_word or 0) - _MARGIN, 0, -1):
            tokens, place = encoding.word_to_tokens(word), encoding.word_to_chars(word)
            if tokens is None or place is None:
                break
            if not (self._looks_far_ahead and text[place[0]].isnumeric()):
                return tokens[0], place[0]
        return 0, 0

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


def _runs(fragments: Sequence[Fragment], max_size: int) -> Iterator[list[Fragment]]:
    """The fragments in order, in runs of at most `max_size` characters. A longer fragment is a separate run."""
    run: list[Fragment] = []
    size = 0
    for fragment in fragments:
        length = len(fragment) if isinstance(fragment, str) else 0
        if run and size + length > max_size:
            yield run
            run, size = [], 0
        run.append(fragment)
        size += length
    if run:
        yield run


def _lost_characters(unreal: Sequence[str]) -> str | None:
    """See `FragmentEncoder.lost_characters`. If all merges lead to tokens, these are the ASCII characters without a
    token. Other characters have several bytes, and the bytes after the first nearly always have tokens.
    """
    if not set(unreal) <= set(BYTE_LETTERS):
        return None
    lost = [BYTE_LETTERS.index(letter) for letter in unreal]
    return None if any(0x80 <= byte < 0xC0 for byte in lost) else "".join(chr(byte) for byte in lost if byte < 0x80)


def _pairs(merges: Sequence[str]) -> list[tuple[str, str]]:
    """The merges as pairs, in order. Of two equal ones the first counts; parts with a space never apply."""
    if not _is_unicode("".join(merges)):
        merges = [merge for merge in merges if _is_unicode(merge)]
    parts = [merge.partition(" ") for merge in dict.fromkeys(merges)]
    return [(left, right) for left, _, right in parts if left and right and " " not in right]


def _unicode_tokens(token_ids: Mapping[str, int]) -> dict[str, int]:
    """The tokens that are valid Unicode, as `tokenizers` requires. One check of all is much faster than many."""
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
