"""The interface of a tokenizer, and the encoding of a prompt with its BOS token. Contains no vocabulary."""

from __future__ import annotations

from typing import Protocol


class Tokenizer(Protocol):
    """Converts between text and the token ids of a model's vocabulary. Safe to use from several threads."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def bos_token_id(self) -> int | None: ...
    @property
    def eos_token_id(self) -> int | None: ...
    @property
    def adds_bos(self) -> bool:
        """The model expects a beginning-of-sequence (BOS) token in front of every prompt."""
        ...

    def encode(self, text: str, *, parse_special: bool = True) -> list[int]:
        """The token ids of `text`, without BOS or EOS.

        With `parse_special`, the text of a special token (such as `<|im_start|>`) becomes that token.
        """
        ...

    def fewest_tokens(self, text: str) -> int:
        """A lower bound of the number of tokens of a text, computed without encoding; 0 = no bound is known."""
        ...

    def token_bytes(self, token_id: int, *, render_special: bool = False) -> bytes:
        """The bytes that this token adds to a text; none for control tokens, unless `render_special` is set.

        The bytes may be only a part of a UTF-8 character: see `Detokenizer`.
        """
        ...


def encode_prompt(tokenizer: Tokenizer, text: str, *, parse_special: bool = True) -> list[int]:
    """The token ids of a whole prompt, beginning with BOS if the model expects it. A BOS in the text is not doubled."""
    return with_bos(tokenizer, tokenizer.encode(text, parse_special=parse_special))


def with_bos(tokenizer: Tokenizer, token_ids: list[int]) -> list[int]:
    """The tokens, beginning with BOS if the model expects it. A BOS that is already there is not doubled."""
    bos = tokenizer.bos_token_id
    if tokenizer.adds_bos and bos is not None and token_ids[:1] != [bos]:
        return [bos, *token_ids]
    return token_ids
