"""From the texts of an embedding request to token ids, with what the model wants around them."""

from __future__ import annotations

import re

from stoker.core.embedding import EmbeddingInfo
from stoker.engine.question_messages import Embed
from stoker.errors import ContextLengthExceeded, InvalidInput
from stoker.text.tokenizer import Tokenizer, encode_prompt, with_bos

_PLACE = re.compile(r"\{(query|document)\}")


def embedding_token_ids(tokenizer: Tokenizer, info: EmbeddingInfo, embed: Embed) -> list[list[int]]:
    """The tokens of every input. Ids are taken as they are; texts get what the model wants in front and behind.

    Raises:
        InvalidInput: an input has no tokens, or is not valid Unicode.
        ContextLengthExceeded: an input is too long, and is not to be cut.
    """
    found: list[list[int]] = []
    for index, given in enumerate(embed.inputs):
        name = f"`{embed.parameter}[{index}]`"
        if isinstance(given, str) and not embed.truncates:
            _check_length(tokenizer.fewest_tokens(given), info.max_tokens, name, at_least=True)
        try:
            token_ids = _token_ids(tokenizer, info, embed, given)
        except UnicodeEncodeError as error:  # a lone surrogate: JSON can spell one
            raise InvalidInput(f"{name} is not valid Unicode: {error.reason}", parameter=embed.parameter) from error
        if not token_ids:
            raise InvalidInput(f"{name} is empty: it has no tokens", parameter=embed.parameter)
        suffix = info.suffix if isinstance(given, str) else ()
        found.append(_fitting(token_ids, len(suffix), info.max_tokens, name, truncates=embed.truncates))
    return found


def _token_ids(tokenizer: Tokenizer, info: EmbeddingInfo, embed: Embed, given: str | list[int]) -> list[int]:
    if not isinstance(given, str):
        return given
    if embed.query is None:
        return [*encode_prompt(tokenizer, given, parse_special=embed.parse_special), *info.suffix]
    if info.rank_template is not None:
        texts = {"query": embed.query, "document": given}
        return encode_prompt(tokenizer, _PLACE.sub(lambda place: texts[place[1]], info.rank_template))
    query, document = (tokenizer.encode(text, parse_special=embed.parse_special) for text in (embed.query, given))
    return with_bos(tokenizer, [*query, *info.separator, *document, *info.suffix])


def _check_length(num_tokens: int, limit: int, name: str, *, at_least: bool) -> None:
    if num_tokens > limit:
        count = f"at least {num_tokens}" if at_least else num_tokens
        raise ContextLengthExceeded(
            f"{name} has {count} tokens, but this model takes at most {limit}: it exceeds the available context size. "
            f"Shorten it, or have it cut.",
            num_prompt_tokens=num_tokens,
            context_size=limit,
        )


def _fitting(token_ids: list[int], num_suffix: int, limit: int, name: str, *, truncates: bool) -> list[int]:
    if len(token_ids) <= limit:
        return token_ids
    if not truncates:
        _check_length(len(token_ids), limit, name, at_least=False)
    kept = max(limit - num_suffix, 0)
    return [*token_ids[:kept], *token_ids[len(token_ids) - (limit - kept) :]]
