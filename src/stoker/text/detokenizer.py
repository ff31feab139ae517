"""Converts token ids to text incrementally, in whole characters. Works on the bytes of tokens, not on vocabularies."""

from __future__ import annotations

import codecs
from collections.abc import Callable

_new_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Decodes the text of one growing sequence of tokens.

    However characters are split into tokens, the results of all `push` calls and of `flush` together are exactly
    `all_bytes.decode("utf-8", "replace")`: bytes that are not UTF-8 become U+FFFD as soon as that is certain.

    Args:
        token_bytes: returns the bytes of a token id, such as `Tokenizer.token_bytes`.
    """

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = _new_decoder("replace")
        self._has_rest = False
        """The decoder holds the beginning of an incomplete character."""

    def push(self, token_id: int) -> str:
        """The characters that this token completes. At most three bytes are held back for the next token."""
        piece = self._token_bytes(token_id)
        if piece.isascii() and not self._has_rest:
            return piece.decode("ascii")
        text = self._decoder.decode(piece)
        self._has_rest = bool(self._decoder.getstate()[0])
        return text

    def flush(self) -> str:
        """The bytes that were held back, as U+FFFD. Resets the detokenizer."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        self._has_rest = False
        return rest
