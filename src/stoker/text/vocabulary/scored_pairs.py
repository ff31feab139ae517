"""Encodes with SentencePiece BPE vocabularies as libllama does: the merge with the best score first, leftmost on a tie.

`tokenizers` cannot do this: it assigns each *pair* a unique rank, and so resolves ties of equal scores differently.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush

from stoker.core.vocabulary import Vocabulary
from stoker.text.vocabulary.fragments import Fragment

_MAX_REMEMBERED_WORDS = 1 << 16
_MAX_REMEMBERED_CHARACTERS = 64


class ScoredPairEncoder:
    """The encoder of a SentencePiece vocabulary with scores. Satisfies `FragmentEncoder`. Encoded words are cached.

    Args:
        vocabulary: the vocabulary with its scores.
        token_ids: token ids by text.
        unknown_id: the token for a byte that has no token.
        adds_space_prefix: a space is prepended to every fragment that begins the text or follows a special token.
    """

    def __init__(
        self, vocabulary: Vocabulary, token_ids: Mapping[str, int], *, unknown_id: int | None, adds_space_prefix: bool
    ) -> None:
        scores = vocabulary.scores or [0.0] * len(vocabulary.tokens)
        self._token_ids = token_ids
        self._cost_of = {text: -score for text, score in zip(vocabulary.tokens, scores, strict=True)}
        self._byte_ids = [_byte_id(byte, token_ids, unknown_id) for byte in range(256)]
        self._adds_space_prefix = adds_space_prefix
        self._words = _word_pattern(vocabulary.tokens)
        self._remembered: dict[str, list[int]] = {}

    @property
    def lost_characters(self) -> str | None:
        return None if None in self._byte_ids else ""

    def encode(self, fragments: Sequence[Fragment]) -> list[int]:
        found: list[int] = []
        is_after_special = True
        for fragment in fragments:
            if isinstance(fragment, int):
                found.append(fragment)
                is_after_special = True
                continue
            prefix = " " if self._adds_space_prefix and is_after_special else ""
            self._append((prefix + fragment).replace(" ", "▁"), found)
            is_after_special = False
        return found

    def _append(self, text: str, found: list[int]) -> None:
        remembered = self._remembered
        for word in self._words.findall(text):
            token_ids = remembered.get(word)
            if token_ids is None:
                token_ids = self._encode_word(word)
            found += token_ids

    def _encode_word(self, word: str) -> list[int]:
        found: list[int] = []
        for piece in self._merged(word):
            token_id = self._token_ids.get(piece)
            if token_id is None:
                found += [byte_id for byte in piece.encode() if (byte_id := self._byte_ids[byte]) is not None]
            else:
                found.append(token_id)
        if len(word) <= _MAX_REMEMBERED_CHARACTERS:
            if len(self._remembered) >= _MAX_REMEMBERED_WORDS:
                self._remembered.clear()
            self._remembered[word] = found
        return found

    def _merged(self, word: str) -> Iterator[str]:
        """Yields the pieces of a word after all merges; each is a token or a single character."""
        size, cost_of = len(word), self._cost_of.get
        #  ...[left    ][middle ]...   pieces by their start; `ends[p]` is 0 when p is inside another piece
        #               ^middle  ^end
        ends = list(range(1, size + 1))
        before = list(range(-1, size - 1))
        candidates = [
            (cost, left, left + 1, left + 2)
            for left in range(size - 1)
            if (cost := cost_of(word[left : left + 2])) is not None
        ]
        heapify(candidates)
        while candidates:
            _, left, middle, end = heappop(candidates)
            if ends[left] != middle or ends[middle] != end:
                continue
            ends[left], ends[middle] = end, 0
            if end < size:
                before[end] = left
                next_end = ends[end]
                if (cost := cost_of(word[left:next_end])) is not None:
                    heappush(candidates, (cost, left, end, next_end))
            previous = before[left]
            if previous >= 0 and (cost := cost_of(word[previous:end])) is not None:
                heappush(candidates, (cost, previous, left, end))
        begin = 0
        while begin < size:
            yield word[begin : ends[begin]]
            begin = ends[begin]


def _byte_id(byte: int, token_ids: Mapping[str, int], unknown_id: int | None) -> int | None:
    raw = bytes((byte,)).decode(errors="surrogateescape")
    return token_ids.get(f"<0x{byte:02X}>", token_ids.get(raw, unknown_id))


def _word_pattern(tokens: Sequence[str]) -> re.Pattern[str]:
    """A pattern that splits a text before each run of `▁`, except where a token, and so a merge, can span the place."""
    inside = {pair[0] for pair in re.findall("[^▁\0]▁", "\0".join(tokens))}
    if not inside:
        return re.compile("▁*[^▁]+|▁+")
    reached = "".join(map(re.escape, sorted(inside)))
    return re.compile(f"▁*[^▁]+(?:(?<=[{reached}])▁+[^▁]*)*|▁+")
