"""Encodes with BERT vocabularies (WordPiece) as libllama does: normalizes words, then splits them greedily into tokens.

In GGUF files, tokens at the beginning of a word begin with `▁`, and other tokens have no prefix.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence

from stoker.text.vocabulary.fragments import Fragment
from stoker.text.vocabulary.unicode_classes import CharacterClass

_MAX_REMEMBERED_WORDS = 1 << 16
_MAX_REMEMBERED_CHARACTERS = 64

_CHINESE = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


class WordPieceEncoder:
    """The encoder of a WordPiece vocabulary. Satisfies `FragmentEncoder`. Encoded words are cached.

    Args:
        token_ids: token ids by text.
        unknown_id: the token for a word that tokens cannot spell; None = such words are dropped.
        lowercase: convert words to lower case.
        strip_accents: remove accents.
    """

    def __init__(
        self, token_ids: Mapping[str, int], *, unknown_id: int | None, lowercase: bool, strip_accents: bool
    ) -> None:
        self._token_ids = token_ids
        self._unknown = [] if unknown_id is None else [unknown_id]
        self._lengths = sorted({len(text) for text in token_ids if text}, reverse=True)
        self._normal_form = _NormalForm(lowercase=lowercase, strip_accents=strip_accents)
        self._remembered: dict[str, list[int]] = {}

    @property
    def lost_characters(self) -> None:
        return None

    def encode(self, fragments: Sequence[Fragment]) -> list[int]:
        found: list[int] = []
        for fragment in fragments:
            if isinstance(fragment, int):
                found.append(fragment)
                continue
            for word in fragment.translate(self._normal_form).split(" "):
                if word:
                    found += self._remembered.get(word) or self._encode_word(word)
        return found

    def _encode_word(self, word: str) -> list[int]:
        found = self._cut("▁" + word) or self._unknown
        if len(word) <= _MAX_REMEMBERED_CHARACTERS:
            if len(self._remembered) >= _MAX_REMEMBERED_WORDS:
                self._remembered.clear()
            self._remembered[word] = found
        return found

    def _cut(self, word: str) -> list[int]:
        """The tokens of a word, always the longest match first; empty if some part of the word has no match."""
        found: list[int] = []
        begin = 0
        while begin < len(word):
            for length in self._lengths:
                end = begin + length
                token_id = self._token_ids.get(word[begin:end]) if end <= len(word) else None
                if token_id is not None:
                    break
            else:
                return []
            found.append(token_id)
            begin = end
        return found


class _NormalForm(dict[int, str]):
    """A table for `str.translate` that computes the normalized form of each character on first use.

    White space of all kinds becomes a space; punctuation and Chinese characters become separate words.
    """

    def __init__(self, *, lowercase: bool, strip_accents: bool) -> None:
        super().__init__()
        self._lowercase = lowercase
        self._strip_accents = strip_accents
        self._space = CharacterClass(r"\s")
        self._control = CharacterClass(r"[\p{Cc}\p{Cf}\p{Co}\x{fffd}]")
        self._accent = CharacterClass(r"\p{M}")
        self._alone = CharacterClass(r"\p{P}|[$+<=>^`|~]")

    def __missing__(self, code: int) -> str:
        character = chr(code)
        if self._strip_accents:
            # As in libllama, only the first character of a decomposition is kept, even for Hangul.
            character = unicodedata.normalize("NFD", character)[0]
        found = self[code] = self._normal(character)
        return found

    def _normal(self, character: str) -> str:
        if character in self._space:
            return " "
        if character in self._control or (self._strip_accents and character in self._accent):
            return ""
        lower = character.lower()[0] if self._lowercase else character
        is_alone = character in self._alone or any(first <= ord(character) <= last for first, last in _CHINESE)
        return f" {lower} " if is_alone else lower
