"""Decodes tokens: the bytes that each token adds to a text."""

from __future__ import annotations

import re

from stoker.text.vocabulary.byte_pairs import BYTE_LETTERS
from stoker.text.vocabulary.special_tokens import Attribute

_BYTE_NAME = re.compile("...([0-9a-fA-F]{1,2})", re.DOTALL)
_BYTE_OF_LETTER = {letter: byte for byte, letter in enumerate(BYTE_LETTERS)}


def token_piece(text: str, attribute: int, *, is_byte_level: bool) -> bytes:
    """The bytes of a token; special tokens as they are spelled.

    Args:
        text: the token's text in the vocabulary.
        attribute: bits of `Attribute`.
        is_byte_level: the text is spelled in `BYTE_LETTERS`; otherwise `▁` in it stands for a space.
    """
    if attribute & Attribute.PARSED:
        return _raw(text)
    if attribute & Attribute.NORMAL:
        return _decoded(text) if is_byte_level else _raw(text.replace("▁", " "))
    if attribute & Attribute.BYTE:
        name = _BYTE_NAME.match(text)
        return bytes((int(name[1], 16),)) if name else b"\0"
    return b""


def _decoded(text: str) -> bytes:
    try:
        return bytes(map(_BYTE_OF_LETTER.__getitem__, text))
    except KeyError:
        return b"".join(_decoded_letter(letter, text) for letter in text)


def _decoded_letter(letter: str, text: str) -> bytes:
    byte = _BYTE_OF_LETTER.get(letter)
    if byte is not None:
        return bytes((byte,))
    # The vocabulary is not byte-level, contrary to its file. libllama writes the same text.
    return b"[UNK_BYTE_0x" + _raw(letter).hex().encode() + _raw(text) + b"]"


def _raw(text: str) -> bytes:
    return text.encode(errors="surrogateescape")
