"""Encodes a fragment without special tokens as token ids: one implementation for each kind of vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from stoker.text.vocabulary.fragments import Fragment


class FragmentEncoder(Protocol):
    """Encodes the fragments of one text. Safe to use from several threads."""

    @property
    def lost_characters(self) -> str | None:
        """Characters that may become no token; all others are part of one. None: any may be lost."""
        ...

    def encode(self, fragments: Sequence[Fragment]) -> list[int]:
        """Token ids; special tokens stay where they are."""
        ...
