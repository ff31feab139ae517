"""Answers to questions about texts and tokens. They need the vocabulary only, so any thread may ask."""

from __future__ import annotations

from functools import partial

from stoker.engine.protocol import Detokenize, Detokenized, Tokenize, Tokenized
from stoker.errors import InvalidInput
from stoker.text.tokenizer import Tokenizer, encode_prompt


def answer_tokenize(tokenizer: Tokenizer, question: Tokenize) -> Tokenized:
    """The tokens of a text.

    Raises:
        InvalidInput: the text is not valid Unicode.
    """
    encode = partial(encode_prompt, tokenizer) if question.wants_bos else tokenizer.encode
    try:
        token_ids = encode(question.text, parse_special=question.parse_special)
    except UnicodeEncodeError as error:  # a lone surrogate: JSON can spell one
        raise InvalidInput(f"the text is not valid Unicode: {error.reason}", parameter="content") from error
    pieces = [tokenizer.token_bytes(token_id, render_special=True) for token_id in token_ids]
    return Tokenized(question.question_id, token_ids, pieces)


def answer_detokenize(tokenizer: Tokenizer, question: Detokenize) -> Detokenized:
    """The text of some tokens, special ones written out; bytes that are no UTF-8 become U+FFFD.

    Raises:
        InvalidInput: a token id is outside the vocabulary.
    """
    culprit = next((t for t in question.token_ids if not 0 <= t < tokenizer.vocab_size), None)
    if culprit is not None:
        message = f"`tokens`: token id {culprit} is outside the vocabulary of {tokenizer.vocab_size}"
        raise InvalidInput(message, parameter="tokens")
    pieces = [tokenizer.token_bytes(token_id, render_special=True) for token_id in question.token_ids]
    return Detokenized(question.question_id, b"".join(pieces).decode("utf-8", "replace"))
