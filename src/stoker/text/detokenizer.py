"""Token ids to text, one token at a time, without ever showing half a character. It knows bytes, not vocabularies."""

from __future__ import annotations

import codecs
from collections.abc import Callable

_new_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The text of one growing sequence of tokens.

    However the tokens fall, the texts of all `push` calls and of `flush` together are exactly
    `all_bytes.decode("utf-8", "replace")`: bytes that are no UTF-8 become U+FFFD, as soon as that is certain.

    Args:
        token_bytes: The bytes of one token id, such as `Tokenizer.token_bytes`.
    """

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = _new_decoder("replace")
        self._has_rest = False
        """Some bytes wait for the next ones."""

    def push(self, token_id: int) -> str:
        """The characters that this token completes; at most three bytes wait for the following token."""
        piece = self._token_bytes(token_id)
        if piece.isascii() and not self._has_rest:
            return piece.decode("ascii")
        text = self._decoder.decode(piece)
        self._has_rest = bool(self._decoder.getstate()[0])
        return text

    def flush(self) -> str:
        """What still waited, as U+FFFD. The detokenizer is then as new."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        self._has_rest = False
        return rest
