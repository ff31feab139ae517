"""Provides a model's vocabulary to the grammar engine. Independent of grammars."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, Protocol

from stoker.errors import UnsupportedParameter
from stoker.grammars.escapes import Spellings

if TYPE_CHECKING:
    from llguidance import LLTokenizer

_WORDS: Final = "[a-zA-Z0-9_]{1,10}"
"""A slice: tokens that the engine allows or forbids together if possible. It has slices for JSON strings by default.
With this additional slice of words, masks of patterns and formats take a third less time."""


class Tokenizer(Protocol):
    """The methods of a tokenizer that grammars need."""

    @property
    def vocab_size(self) -> int: ...
    def encode(self, text: str, *, parse_special: bool = True) -> list[int]: ...
    def token_bytes(self, token_id: int, *, render_special: bool = False) -> bytes: ...


@dataclass(frozen=True)
class Vocabulary:
    """The facts about a model's vocabulary that grammars need. Satisfies `stoker.grammars.sources.Names`."""

    tokenizer: Tokenizer
    eog_token_ids: frozenset[int]
    """All end-of-generation tokens; at least one."""
    special_token_ids: frozenset[int]
    """Tokens that are not text: control tokens without text, and markers. A grammar allows them only by name."""

    def one_token(self, text: str) -> int | None:
        """See `Names.one_token`."""
        token_ids = self.tokenizer.encode(text, parse_special=True)
        return token_ids[0] if len(token_ids) == 1 else None

    def pieces(self, marker: str) -> list[str | int]:
        """See `Names.pieces`."""
        return [piece for piece in cut(marker, self.spellings) if piece not in self.eog_token_ids]

    @cached_property
    def spellings(self) -> dict[str, int]:
        """The ids of the tokens that are not text, by their spelling."""
        ids = sorted(self.special_token_ids | self.eog_token_ids)
        found = ((self.tokenizer.token_bytes(i, render_special=True).decode("utf-8", "replace"), i) for i in ids)
        return {text: i for text, i in found if text}


def cut(marker: str, spellings: Mapping[str, int]) -> list[str | int]:
    """Splits a text into the ids of tokens that are spelled in it (the longest first) and the text between them."""
    for size in range(len(marker), 0, -1):
        for at in range(len(marker) - size + 1):
            token_id = spellings.get(marker[at : at + size])
            if token_id is not None:
                return [*cut(marker[:at], spellings), token_id, *cut(marker[at + size :], spellings)]
    return [marker] if marker else []


def engine_tokenizer(vocabulary: Vocabulary) -> tuple[LLTokenizer, Spellings]:
    """Creates the engine's tokenizer, and the tokens for escape sequences of JSON.

    Takes 0.1 s for 50,000 tokens, and 1 s and 70 MB for 260,000.

    Raises:
        UnsupportedParameter: the engine is not installed.
    """
    try:
        from llguidance import LLTokenizer, TokenizerWrapper
    except ImportError as error:
        raise UnsupportedParameter(
            f"structured output needs the package llguidance, which cannot be imported here: {error}",
            parameter="response_format",
        ) from None
    ends = sorted(vocabulary.eog_token_ids)
    slices = [*LLTokenizer.json_slices(), _WORDS]
    source = _Source(vocabulary, ends[0])
    tokenizer = LLTokenizer(TokenizerWrapper(source), eos_token=ends, slices=slices)
    special = set(source.special_token_ids)
    return tokenizer, Spellings(tokenizer, (b"" if i in special else text for i, text in enumerate(source.tokens)))


class _Source:
    """The tokenizer interface that the engine's `TokenizerWrapper` expects."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, eos_token_id: int) -> None:
        tokenizer = vocabulary.tokenizer
        self.eos_token_id = eos_token_id
        special: Collection[int] = vocabulary.special_token_ids | vocabulary.eog_token_ids
        self.special_token_ids = sorted(special)
        self.tokens = [tokenizer.token_bytes(i, render_special=True) for i in range(tokenizer.vocab_size)]
        self._tokenizer = tokenizer

    def __call__(self, text: str | bytes) -> list[int]:
        if not isinstance(text, str):  # the wrapper first tries bytes, and falls back to text on this error
            raise TypeError("only texts are tokenized")
        return self._tokenizer.encode(text, parse_special=False)
