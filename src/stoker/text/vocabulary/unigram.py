"""Encodes with SentencePiece unigram vocabularies, such as XLM-RoBERTa's, as libllama does: the most probable split."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np

from stoker.core.vocabulary import TokenType, Vocabulary
from stoker.errors import ModelFileInvalid
from stoker.text.vocabulary.fragments import Fragment

_SPACE = "▁"
_MATCHED = (TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED)
_UNKNOWN_PENALTY = np.float32(10)
_MAX_REMEMBERED_WORDS = 1 << 16
_MAX_REMEMBERED_CHARACTERS = 64
_WORDS = re.compile(f"{_SPACE}[^{_SPACE}]*|[^{_SPACE}]+")


class UnigramEncoder:
    """The encoder of a unigram vocabulary. Satisfies `FragmentEncoder`. Encoded words are cached.

    Args:
        vocabulary: the vocabulary with scores, which are logarithms of probabilities.
        unknown_id: the token for characters that no token contains; consecutive ones become a single token.

    Raises:
        ModelFileInvalid: there are no scores or no unknown token, or the table of characters is invalid.
    """

    def __init__(self, vocabulary: Vocabulary, *, unknown_id: int | None) -> None:
        if not vocabulary.scores or unknown_id is None:
            raise ModelFileInvalid("a unigram vocabulary needs scores and an unknown token")
        self._unknown_id = unknown_id
        self._scored: dict[str, tuple[int, float]] = {}
        lengths: dict[str, set[int]] = defaultdict(set)
        for token_id, (text, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True)):
            if kind in _MATCHED:
                score = 0.0 if kind == TokenType.USER_DEFINED else vocabulary.scores[token_id]
                self._scored[text] = token_id, score
                lengths[text[0]].add(len(text))
        self._lengths = {first: sorted(found) for first, found in lengths.items()}
        """Lengths of the tokens by their first character, sorted."""
        self._unknown_score = _unknown_score(vocabulary)
        self._characters = CharacterMap(vocabulary.character_map)
        self._merges_spaces = bool(vocabulary.merges_spaces)
        self._adds_space_prefix = bool(vocabulary.add_space_prefix)
        self._crosses_words = any(_SPACE in text[1:] for text in self._scored)
        self._remembered: dict[str, list[int]] = {}

    @property
    def lost_characters(self) -> None:
        return None

    def encode(self, fragments: Sequence[Fragment]) -> list[int]:
        found: list[int] = []
        for fragment in fragments:
            if isinstance(fragment, int):
                found.append(fragment)
            else:
                found += self._without_repeated(self._words(self._normalised(fragment)))
        return found

    def _normalised(self, text: str) -> str:
        """The normalized text, with `▁` before each word (or only the first), and instead of each remaining space."""
        text = self._characters.apply(text)
        if self._merges_spaces:
            return "".join(_SPACE + word for word in text.split(" ") if word)
        stripped = text.lstrip(" ")
        prefix = _SPACE if self._adds_space_prefix and stripped else ""
        return text[: len(text) - len(stripped)].replace(" ", _SPACE) + prefix + stripped.replace(" ", _SPACE)

    def _words(self, text: str) -> Iterator[int]:
        for word in (text,) if self._crosses_words else _WORDS.findall(text):
            found = self._remembered.get(word)
            if found is None:
                found = self._cut(word)
                if len(word) <= _MAX_REMEMBERED_CHARACTERS:
                    if len(self._remembered) >= _MAX_REMEMBERED_WORDS:
                        self._remembered.clear()
                    self._remembered[word] = found
            yield from found

    def _without_repeated(self, token_ids: Iterator[int]) -> Iterator[int]:
        for token_id, run in groupby(token_ids):
            yield from (token_id,) if token_id == self._unknown_id else run

    def _cut(self, text: str) -> list[int]:
        """The Viterbi algorithm: `best[i]` is the maximum sum of scores of tokens that spell the first i characters.

        Each single character can be the unknown token, unless it is a token itself.
        """
        best = [0.0] + [float("-inf")] * len(text)
        last: list[tuple[int, int]] = [(0, 0)] * (len(text) + 1)
        for begin, first in enumerate(text):
            is_known = False
            for length in self._lengths.get(first, ()):
                entry = self._scored.get(text[begin : begin + length])
                if entry is None or begin + length > len(text):
                    continue
                is_known |= length == 1
                if (score := best[begin] + entry[1]) > best[begin + length]:
                    best[begin + length], last[begin + length] = score, (entry[0], begin)
            if not is_known and (score := best[begin] + self._unknown_score) > best[begin + 1]:
                best[begin + 1], last[begin + 1] = score, (self._unknown_id, begin)
        found: list[int] = []
        end = len(text)
        while end:
            token_id, end = last[end]
            found.append(token_id)
        return found[::-1]


class CharacterMap:
    """SentencePiece's normalization: replaces characters by a table, the longest match first.

    ```
    number of bytes | entries of a trie in a double array, 32 bits each | texts, each ended by a NUL
    entry  31: value is the offset of a text | 30..10: base | 9: base times 256 | 8: a match ends here | 7..0: byte
    ```

    The child of node n for byte b is the entry `base(n) ^ b`, if the byte of that entry is b.

    Args:
        table: the table as in the file; empty = characters are unchanged.

    Raises:
        ModelFileInvalid: the table is cut off.
    """

    def __init__(self, table: bytes) -> None:
        size = int.from_bytes(table[:4], "little")
        if table and (size % 4 or not 4 <= size < len(table) - 4):
            raise ModelFileInvalid("the table of characters is cut off")
        self._entries: list[int] = np.frombuffer(table, "<u4", size // 4, 4).tolist() if table else []
        self._texts = table[4 + size :]
        self._plain = re.compile(self._plain_pattern())

    def apply(self, text: str) -> str:
        """The text with replacements by the table."""
        if not self._entries:
            return text
        raw, found, at = text.encode(), list[str](), 0
        if self._plain.fullmatch(raw):
            return text
        while at < len(raw):
            if plain := self._plain.match(raw, at):
                found.append(plain[0].decode())
                at = plain.end()
                continue
            length, replacement = self._longest(raw, at)
            if replacement is None:
                length = _character_bytes(raw[at])
                replacement = raw[at : at + length].decode()
            found.append(replacement)
            at += length
        return "".join(found)

    def _plain_pattern(self) -> bytes:
        """A pattern for runs of printable ASCII characters that need no replacement, not followed by non-ASCII."""
        plain = [byte for byte in range(0x20, 0x7F) if self._stays(byte)] if self._entries else []
        characters = b"[" + b"".join(b"\\x%02x" % byte for byte in plain or [0]) + b"]"
        return characters + rb"+(?![\x80-\xff])"

    def _stays(self, byte: int) -> bool:
        child = self._child(_base(self._entries[0]), byte)
        if child is None:
            return True
        is_end, node = child
        return not is_end and all(self._child(node, after) is None for after in range(1, 0x80))

    def _child(self, base: int, byte: int) -> tuple[bool, int] | None:
        """Whether a match ends at this child, and its base, also the entry of its text; None = there is no child."""
        node = base ^ byte
        if not byte or node >= len(self._entries) or self._entries[node] & 0x800000FF != byte:
            return None
        entry = self._entries[node]
        return bool(entry >> 8 & 1), node ^ _base(entry)

    def _longest(self, raw: bytes, at: int) -> tuple[int, str | None]:
        """The number of bytes from `at` on that are replaced, and the replacement; None = no replacement."""
        length, place, base = 0, 0, _base(self._entries[0])
        for index in range(at, len(raw)):
            child = self._child(base, raw[index])
            if child is None:
                break
            is_end, base = child
            if is_end and base < len(self._entries):
                length, place = index - at + 1, self._entries[base] & 0x7FFFFFFF
        if not length:
            return 0, None
        end = self._texts.find(b"\0", place)
        return length, self._texts[place : max(end, place)].decode(errors="replace")


def _base(entry: int) -> int:
    return (entry >> 10) << ((entry & 0x200) >> 6)


def _character_bytes(first: int) -> int:
    """The number of bytes of a UTF-8 character with this first byte."""
    return 1 if first < 0xC0 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4


def _unknown_score(vocabulary: Vocabulary) -> float:
    """The score of an unknown character: below those of all normal tokens, as libllama computes it in 32 bits."""
    kinds = zip(vocabulary.types, vocabulary.scores, strict=True)
    normal = [score for kind, score in kinds if kind == TokenType.NORMAL]
    return float(np.float32(min(normal, default=0.0)) - _UNKNOWN_PENALTY)
