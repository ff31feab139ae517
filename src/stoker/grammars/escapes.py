r"""Supports escape sequences in JSON strings that the grammar engine does not know: `\u00e9`, `\ud83d\ude00` and `\/`.

The engine accepts only one spelling of each character, so that no key can be written twice. When a model writes another
spelling, the engine is given the character itself, so that all constraints on the string apply to it.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from stoker.grammars.matcher import GrammarConstraint

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_WHOLE: Final = re.compile(r"\\/|\\u(?:(?!d[89a-f])[0-9a-f]{4}|d[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2})")
_BEGUN: Final = re.compile(r"\\u(?:[0-9a-f]{0,3}|d[89ab][0-9a-f]{2}(?:\\(?:u(?:d(?:[c-f][0-9a-f]?)?)?)?)?)|\\")
_PART: Final = re.compile(rb"\\?/|\\|\\?u[0-9a-fA-F]{0,4}|[0-9a-fA-F]{1,4}")
"""Matches the text of tokens that can be a part of an escape sequence."""
_MAX_PART: Final = 6
_ALPHABETS: Final = (*range(0xC0, 0x180), *range(0x3B1, 0x3CA), *range(0x410, 0x450))
_FOREIGN: Final = "éñüßçа中あ한אعक–—’“…€°\u00a0\u200b😀" + "".join(map(chr, _ALPHABETS))
"""Characters that JSON allows only in strings. They are tried first: if one is allowed, this place is in a string."""
_COMMON: Final = _FOREIGN + "aA0<'&/"
_SIGNS: Final = frozenset({b"\\", *(bytes([lead]) for lead in (0xC3, 0xC4, 0xC5, 0xCE, 0xD0, 0xD1, 0xE2, 0xE4, 0xF0))})
"""A backslash, and the first UTF-8 bytes of some characters in `_FOREIGN`."""
_LOW_HALVES: Final = ("dc05", "dd35", "de00", "de35", "df35")
"""The second halves of surrogate pairs that are tried as samples."""
_LACKS_SOME: Final = re.compile(r"\\u(?:[0-9a-fA-F]{4}\\u)?([0-9a-fA-F]{1,3})")
"""The beginning of an escape sequence that lacks one to three digits."""
_FIRST_DIGITS: Final = re.compile(rb"[0-9a-fA-F]{1,3}")
"""The digits at the beginning of a token that can end an escape sequence: `c` in the token `cn` of `M\\u00fcnchen`."""
_DIGITS: Final = "0123456789abcdef"
_COMMON_DIGITS: Final = tuple(f"{ord(char):04x}" if char < "\U00010000" else "d83d" for char in _COMMON)


class Spellings:
    """The tokens of a vocabulary that can be a part of an escape sequence, and the engine's spelling of characters.

    Args:
        tokenizer: the engine's tokenizer.
        tokens: the text of each token by token id; empty for tokens that are not text.
    """

    def __init__(self, tokenizer: LLTokenizer, tokens: Iterable[bytes]) -> None:
        self._tokenizer = tokenizer
        self._characters: dict[str, list[int]] = {}
        self.parts: dict[int, str] = {}
        self.tails: dict[int, str] = {}
        """Tokens that end with a backslash, with the text before it."""
        self.signs: list[int] = []
        """Indicator tokens: wherever an escape sequence may begin, one of them is allowed. The most likely is first."""
        words: dict[bytes, int] = {}
        for token_id, text in enumerate(tokens):
            if len(text) == 1 and text in _SIGNS:
                self.signs.insert(0 if text == b"\\" else len(self.signs), token_id)
            if text.isalnum():
                words[text] = token_id
            if len(text) <= _MAX_PART and _PART.fullmatch(text):
                self.parts[token_id] = text.decode("ascii")
            if text.endswith(b"\\"):
                with contextlib.suppress(UnicodeDecodeError):
                    self.tails[token_id] = text[:-1].decode()
        self.sizes = [[i for i, part in self.parts.items() if len(part) == size + 1] for size in range(_MAX_PART)]
        """The tokens of `parts`, by the length of their text minus 1."""
        self.openings = {token_id: part for token_id, part in self.parts.items() if part in ("\\", "\\u", "\\/")}
        singles = {part: token_id for token_id, part in self.parts.items() if part in ("\\", "u")}
        self.opening = [singles[part] for part in ("\\", "u")] if len(singles) == 2 else []
        """The tokens that are a backslash and the letter `u`; empty if the vocabulary lacks one of the two."""
        across: dict[str, list[tuple[int, int]]] = {}
        for word, token_id in words.items():
            digits = _FIRST_DIGITS.match(word)
            for size in range(1, 1 + len(digits[0]) if digits else 1):
                if (rest := word[size:]).isalpha() and rest in words:
                    across.setdefault(word[:size].decode(), []).append((token_id, words[rest]))
        self.across = {digits: np.array(pairs, dtype=np.int64).T for digits, pairs in across.items()}
        """By digits: in the first row, tokens that begin with them, and in the second, the tokens for the rest."""

    def of_text(self, text: str) -> list[int]:
        """The tokens of text inside a string, as the engine spells it."""
        return self._tokenizer.greedy_tokenize(text) if text else []

    def of_character(self, char: str) -> list[int]:
        """The tokens of a character as the engine spells it; empty if a string cannot contain it unescaped."""
        if char not in self._characters:
            spelled = json.dumps(char, ensure_ascii=False)[1:-1]
            self._characters[char] = [] if spelled.startswith("\\u") else self.of_text(spelled)
        return self._characters[char]


class _Place:
    """A place in an answer where an escape sequence may begin. Valid until the matcher consumes another token."""

    def __init__(self, matcher: LLMatcher, spellings: Spellings) -> None:
        self._matcher = matcher
        self._spellings = spellings
        self._takes: dict[str, bool] = {}
        opening = spellings.opening
        known = matcher.validate_tokens(opening) if opening else 2
        self.has_backslash = known > 0
        """The engine itself allows some escape sequences here."""
        self.is_open = known < 2 and any(map(self._takes_character, _COMMON if known else _FOREIGN))
        """The place is in a string, where escape sequences unknown to the engine are to be allowed, too."""

    def takes(self, begun: str, part: str) -> bool:
        """Whether the string may continue with an escape sequence, or the beginning of one.

        Args:
            begun: the sequence so far.
            part: text that continues it.
        """
        text = (begun + part).lower()
        if _WHOLE.fullmatch(text):
            return self._takes_character(_character(text))
        if _BEGUN.fullmatch(text) is None:
            return False
        return any(map(self._takes_character, _candidates(text, is_jump=len(part) > 1)))

    def _takes_character(self, char: str) -> bool:
        if char not in self._takes:
            token_ids = self._spellings.of_character(char)
            self._takes[char] = bool(token_ids) and self._matcher.validate_tokens(token_ids) == len(token_ids)
        return self._takes[char]


class JsonConstraint(GrammarConstraint):
    """The constraint of a grammar in which backslashes occur only in JSON strings, or where any text is allowed.

    Args:
        matcher: see `GrammarConstraint`.
        vocab_size: see `GrammarConstraint`.
        eog_token_ids: see `GrammarConstraint`.
        spellings: the spellings of the vocabulary.
    """

    def __init__(
        self, matcher: LLMatcher, vocab_size: int, eog_token_ids: frozenset[int], spellings: Spellings
    ) -> None:
        super().__init__(matcher, vocab_size, eog_token_ids)
        self._spellings = spellings
        self._begun = ""  # the beginning of an escape sequence, which the matcher has not consumed
        self._place: _Place | None = None

    def mask(self) -> NDArray[np.uint32] | None:
        """See `Constraint.mask`."""
        if self._begun:
            return self._mask_inside()
        words = super().mask()
        if words is None or self.error is not None or not _has(words, self._spellings.signs) or not self._here.is_open:
            return words
        for token_id, part in self._spellings.openings.items():
            if part != "\\/" or self._here.takes("", part):
                words[token_id >> 5] |= np.uint32(1 << (token_id & 31))
        return words

    def allows(self, token_id: int) -> bool:
        """See `Constraint.allows`."""
        if self._begun:
            return self._is_known(token_id) or self._goes_on(token_id)
        return super().allows(token_id) or self._continues(token_id)

    def push(self, token_id: int) -> None:
        """See `Constraint.push`."""
        if self._is_plain(token_id) and self._matcher.try_consume_tokens([token_id]) == 1:
            self._place = None
        elif self._is_known(token_id):
            self._take(token_id)
        elif self._continues(token_id):
            self._begun += self._spellings.parts[token_id]
            if _WHOLE.fullmatch(text := self._begun.lower()):
                self._end(_character(text))
        elif (across := self._across(token_id)) is not None:
            char, rest = across
            self._end(char)
            self._take(rest)
        else:
            self.error = self.error or f"token {token_id} is not allowed"

    def forced_text(self) -> list[int]:
        """See `Constraint.forced_text`."""
        return [] if self._begun else super().forced_text()

    def validate(self, token_ids: Sequence[int]) -> int:
        """See `Constraint.validate`. Stops in an escape sequence that the engine does not know."""
        found = 0 if self._begun else super().validate(token_ids)
        return found or int(bool(token_ids) and (self._is_known(token_ids[0]) or self._goes_on(token_ids[0])))

    def copy(self) -> JsonConstraint:
        """See `GrammarConstraint.copy`."""
        copy = JsonConstraint(self._matcher.deep_copy(), self._vocab_size, self._eog_token_ids, self._spellings)
        copy._begun = self._begun
        return copy

    def _mask_inside(self) -> NDArray[np.uint32] | None:
        """The mask after the beginning of an escape sequence."""
        across = list(self._allowed_across())
        is_known = self._begun == "\\" and self._here.has_backslash
        if is_known:
            super().push(self._spellings.opening[0])
        words = super().mask()
        if is_known:
            self._matcher.rollback(1)
        elif words is not None:
            words[:] = 0
        if words is None or self.error is not None:
            return words
        lacks = _LACKS_SOME.fullmatch(self._begun)
        sizes = self._spellings.sizes[: 4 - len(lacks[1])] if lacks else self._spellings.sizes
        parts = np.array([each for size in sizes for each in size if self._continues(each)], dtype=np.int64)
        for found in (parts, *across):
            np.bitwise_or.at(words, found >> 5, np.uint32(1) << (found & 31).astype(np.uint32))
        return words

    def _is_plain(self, token_id: int) -> bool:
        """Whether the token is ordinary: no escape sequence begins or ends in it, and it does not end the answer."""
        is_inside = token_id < self._vocab_size and token_id not in self._eog_token_ids
        return is_inside and not self._begun and token_id not in self._spellings.tails

    def _is_known(self, token_id: int) -> bool:
        """Whether the engine allows the token."""
        if self._begun == "\\":
            return super().validate((self._spellings.opening[0], token_id)) == 2
        if token_id in self._eog_token_ids:
            return not self._begun and self.can_end
        return not self._begun and self._takes(token_id)

    def _goes_on(self, token_id: int) -> bool:
        """Whether the token is, or begins with, a part of an escape sequence that the engine does not know."""
        return self._continues(token_id) or self._across(token_id) is not None

    def _continues(self, token_id: int) -> bool:
        """Whether the whole token begins or continues an escape sequence that the engine does not know."""
        part = (self._spellings.parts if self._begun else self._spellings.openings).get(token_id)
        if part is None or self.error is not None:
            return False
        return self._here.is_open and self._here.takes(self._begun, part)

    @property
    def _here(self) -> _Place:
        if self._place is None:
            self._place = _Place(self._matcher, self._spellings)
        return self._place

    def _ends(self) -> Iterator[tuple[str, NDArray[np.int64]]]:
        """Yields characters that leading digits of a token may complete the escape sequence to, with these tokens."""
        missing = _LACKS_SOME.fullmatch(self._begun)
        if missing is None:
            return
        for digits, tokens in self._spellings.across.items():
            text = (self._begun + digits).lower()
            if len(digits) == 4 - len(missing[1]) and _WHOLE.fullmatch(text) and self._here.takes(text, ""):
                yield _character(text), tokens

    def _across(self, token_id: int) -> tuple[str, int] | None:
        """The character with which a token ends the escape sequence, and the token of the rest."""
        for char, tokens in self._ends():
            for rest in map(int, tokens[1, tokens[0] == token_id]):
                token_ids = [*self._spellings.of_character(char), rest]
                return (char, rest) if super().validate(token_ids) == len(token_ids) else None
        return None

    def _allowed_across(self) -> Iterator[NDArray[np.int64]]:
        """Yields the allowed tokens whose beginning ends the escape sequence."""
        for char, tokens in self._ends():
            token_ids = self._spellings.of_character(char)
            self._push_all(token_ids)
            words = super().mask()
            self._matcher.rollback(len(token_ids))
            if words is not None:
                is_allowed = words[tokens[1] >> 5] >> (tokens[1] & 31).astype(np.uint32) & 1
                yield tokens[0, is_allowed.astype(bool)]

    def _end(self, char: str) -> None:
        """Gives the engine the character of a complete escape sequence."""
        self._begun, self._place = "", None
        self._push_all(self._spellings.of_character(char))

    def _take(self, token_id: int) -> None:
        """Gives the engine an allowed token, except for a final backslash that may begin an escape sequence."""
        backslash = self._spellings.opening[:1]
        held = backslash if self._begun else []
        self._begun, self._place = "", None
        before = self._spellings.tails.get(token_id)
        if before is None or not backslash:
            self._push_all([*held, token_id])
            return
        self._push_all([*held, *self._spellings.of_text(before)])
        if self._here.is_open:
            self._begun = "\\"
        else:
            self._place = None
            self._push_all(backslash)

    def _push_all(self, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            super().push(token_id)


def _has(words: NDArray[np.uint32], token_ids: Sequence[int]) -> bool:
    return any(int(words[token_id >> 5]) >> (token_id & 31) & 1 for token_id in token_ids)


def _character(text: str) -> str:
    """The character of a complete escape sequence."""
    return "/" if text == "\\/" else _joined(text[2:6], text[8:])


def _joined(first: str, second: str = "") -> str:
    code = int(first, 16)
    return chr(0x10000 + ((code - 0xD800) << 10) + int(second, 16) - 0xDC00 if second else code)


def _candidates(text: str, *, is_jump: bool) -> Iterator[str]:
    """Characters that an escape sequence may become; not all, but those of all next digits of a text are among them.

    Args:
        text: the beginning of the sequence.
        is_jump: several digits were added to it at once, and fewer characters are looked at.
    """
    first, second = text[2:6], text[8:]
    if len(first) == 4:
        yield from (
            _joined(first, half)
            for half in _filled(second, _LOW_HALVES, is_jump=is_jump)
            if half[:1] == "d" and half[1] in "cdef"
        )
        return
    for digits in _filled(first, _COMMON_DIGITS, is_jump=is_jump):
        if digits < "d800" or digits > "dfff":
            yield _joined(digits)
        elif digits < "dc00":
            yield from (_joined(digits, half) for half in _LOW_HALVES)


def _filled(begun: str, common: Iterable[str], *, is_jump: bool) -> Iterator[str]:
    """Yields samples of four digits that begin with the given ones, the common ones first."""
    yield from (digits for digits in common if digits.startswith(begun))
    match len(begun), is_jump:
        case 1, _:
            yield from (begun + second + third + "5" for second in _DIGITS for third in _DIGITS)
        case 2, False:
            yield from (begun + third + fourth for third in _DIGITS for fourth in _DIGITS)
        case 2, True:
            yield from (begun + third + "5" for third in _DIGITS)
        case 3, False:
            yield from (begun + fourth for fourth in _DIGITS)
        case 3, True:
            yield from (begun + fourth for fourth in "05")
        case _:
            pass
