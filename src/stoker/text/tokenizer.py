"""The interface of a tokenizer, and the way from a prompt to token ids. No vocabulary lives here."""

from __future__ import annotations

from typing import Protocol


class Tokenizer(Protocol):
    """A model's vocabulary. Safe to use from several threads."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def bos_token_id(self) -> int | None: ...
    @property
    def eos_token_id(self) -> int | None: ...
    @property
    def adds_bos(self) -> bool:
        """The model wants a beginning-of-sequence token in front of every prompt."""
        ...

    def encode(self, text: str, *, parse_special: bool = True) -> list[int]:
        """Token ids of `text`; nothing is added before or after.

        With `parse_special`, the text of a special token (such as `<|im_start|>`) becomes that token.
        """
        ...

    def fewest_tokens(self, text: str) -> int:
        """A lower bound of the number of tokens that `encode` gives, found without encoding; 0 if nothing is known."""
        ...

    def token_bytes(self, token_id: int, *, render_special: bool = False) -> bytes:
        """The bytes that this token adds to a text; control tokens add none unless `render_special`.

        A byte sequence may be part of a UTF-8 character only: see `Detokenizer`.
        """
        ...


def encode_prompt(tokenizer: Tokenizer, text: str, *, parse_special: bool = True) -> list[int]:
    """Token ids of a whole prompt, with BOS in front if the model wants one and the text does not bring its own."""
    return with_bos(tokenizer, tokenizer.encode(text, parse_special=parse_special))


def with_bos(tokenizer: Tokenizer, token_ids: list[int]) -> list[int]:
    """The same tokens, with BOS in front if the model wants one and they do not bring their own."""
    bos = tokenizer.bos_token_id
    if tokenizer.adds_bos and bos is not None and token_ids[:1] != [bos]:
        return [bos, *token_ids]
    return token_ids
