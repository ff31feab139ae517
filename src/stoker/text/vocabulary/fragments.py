"""Splits a text at the special tokens in it. Does not encode the pieces between them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol, TypeAlias

SPACES = " \t\n\v\f\r"
"""White space that a special token may strip beside it."""

Fragment: TypeAlias = str | int
"""A piece of text, never empty, or the id of a special token."""


@dataclass(frozen=True, slots=True)
class ParsedToken:
    """A special token that is searched for in texts, and whether it strips white space on its sides."""

    token_id: int
    text: str
    strips_left: bool = False
    strips_right: bool = False


class FragmentSplitter:
    """Finds special tokens as libllama does: all places of the longest token (in bytes), then of the next longest.

    Gemma has more than 6,000 such tokens, so the tokens that occur in a text are found without searching for each.

    Args:
        tokens: the tokens to search for; their texts are distinct and not empty.
    """

    def __init__(self, tokens: Iterable[ParsedToken]) -> None:
        by_length = sorted(tokens, key=lambda token: -len(token.text.encode(errors="surrogateescape")))
        self._by_text = {token.text: (order, token) for order, token in enumerate(by_length)}
        chains = _chains(self._by_text)
        self._chains = [chain for chain in chains if len(chain) > 1]
        self._lengths: dict[str, set[int]] = {}
        for chain in chains:
            if len(chain) == 1:
                self._lengths.setdefault(chain[0][:2], set()).add(len(chain[0]))
        self._heads = _heads(self._lengths)

    def split(self, text: str) -> list[Fragment]:
        """The fragments in order. Together they are the text, except for white space that a token strips."""
        fragments: list[Fragment] = [text] if text else []
        for _, token in sorted(self._present(text)):
            cut: list[Fragment] = []
            for fragment in fragments:
                if isinstance(fragment, int) or token.text not in fragment:
                    cut.append(fragment)
                else:
                    _cut(fragment, token, cut)
            fragments = cut
        return fragments

    def _present(self, text: str) -> set[tuple[int, ParsedToken]]:
        found: set[tuple[int, ParsedToken]] = set()
        for chain in self._chains:
            found.update(self._by_text[token_text] for token_text in takewhile(text.__contains__, chain))
        if self._heads is None:
            return found
        for match in self._heads.finditer(text):
            start = match.start()
            for head in (text[start : start + 2], text[start]):
                for length in self._lengths.get(head, ()):
                    entry = self._by_text.get(text[start : start + length])
                    if entry is not None:
                        found.add(entry)
        return found


def _chains(texts: Iterable[str]) -> list[list[str]]:
    """Groups texts into chains, each text a prefix of the next, such as runs of spaces.

    If a text does not contain one element of a chain, it contains none of the later ones.
    """
    chains: list[list[str]] = []
    for text in sorted(texts):
        if chains and text.startswith(chains[-1][-1]):
            chains[-1].append(text)
        else:
            chains.append([text])
    return chains


def _heads(lengths: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern for the first character of every place where a token may begin, judged by its first two characters."""
    seconds: dict[str, list[str]] = {}
    for head in lengths:
        seconds.setdefault(head[0], []).append(head[1:])
    if not seconds:
        return None
    return re.compile(
        "|".join(
            re.escape(first) + ("" if "" in second else f"(?=[{''.join(map(re.escape, second))}])")
            for first, second in seconds.items()
        )
    )


def _cut(text: str, token: ParsedToken, into: list[Fragment]) -> None:
    start = 0
    while (found := text.find(token.text, start)) >= 0:
        left = text[start:found]
        if token.strips_left:
            left = left.rstrip(SPACES)
        if left:
            into.append(left)
        into.append(token.token_id)
        start = found + len(token.text)
        if token.strips_right:
            start += len(text) - start - len(text[start:].lstrip(SPACES))
    if start < len(text):
        into.append(text[start:])


class FragmentEncoder(Protocol):
    """Encodes the fragments of a text to token ids. Safe to use from several threads."""

    @property
    def lost_characters(self) -> str | None:
        """Characters that encoding may drop; all others become part of a token. None = any character may be dropped."""
        ...

    def encode(self, fragments: Sequence[Fragment]) -> list[int]:
        """The token ids of the fragments in order; ids of special tokens among the fragments are kept."""
        ...
