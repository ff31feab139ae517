"""Tokenizes the texts of a request: the prompt and its echo, logit biases of texts, and fill-in-the-middle tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from stoker.core.batch import Entry
from stoker.core.media import PlacedSpan, Span
from stoker.core.params import SamplingParams
from stoker.engine.cards import FillTokens
from stoker.engine.protocol import PlacedPrompt, PromptToken, Submit
from stoker.errors import InvalidInput
from stoker.text.tokenizer import Tokenizer, encode_prompt, with_bos

# Fill-in-the-middle tokens, as in llama.cpp: Qwen, StarCoder and Granite, DeepSeek, CodeLlama, GLM.
_PREFIX = ("<|fim_prefix|>", "<fim_prefix>", "<fim-prefix>", "<｜fim▁begin｜>", "<PRE>", "<|code_prefix|>")
_SUFFIX = ("<|fim_suffix|>", "<fim_suffix>", "<fim-suffix>", "<｜fim▁hole｜>", "<SUF>", "<|code_suffix|>")
_MIDDLE = ("<|fim_middle|>", "<fim_middle>", "<fim-middle>", "<｜fim▁end｜>", "<MID>", "<|code_middle|>")
_REPOSITORY = ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>")
_SEPARATOR = ("<|file_sep|>",)
FILL_SPELLINGS = (*_PREFIX, *_SUFFIX, *_MIDDLE, *_REPOSITORY, *_SEPARATOR)


def prompt_entries(tokenizer: Tokenizer, submit: Submit) -> tuple[list[Entry], tuple[PlacedSpan, ...]]:
    """The entries of a request's prompt, and the places of spans of rows. A prompt of token ids alone is unchanged; a
    prompt with text gets a BOS token if the model wants one.

    Raises:
        InvalidInput: a text is not valid Unicode.
    """
    return entries_of(tokenizer, submit.prompt, parse_special=submit.parse_special)


def entries_of(
    tokenizer: Tokenizer, prompt: PlacedPrompt, *, parse_special: bool = True
) -> tuple[list[Entry], tuple[PlacedSpan, ...]]:
    """The entries of a prompt, and the places of spans of rows in it. See `prompt_entries`."""
    try:
        if isinstance(prompt, str):
            return encode_prompt(tokenizer, prompt, parse_special=parse_special), ()
        parts = [_encode(tokenizer, part, parse_special) for part in prompt]
    except UnicodeEncodeError as error:  # a lone surrogate: JSON can spell one
        raise InvalidInput(f"the prompt is not valid Unicode: {error.reason}", parameter="prompt") from error
    entries = [entry for part in parts for entry in part]
    if any(isinstance(part, str) for part in prompt):
        entries = with_bos(tokenizer, entries)
    spans: list[PlacedSpan] = []
    start = len(entries) - sum(map(len, parts))
    for part, its in zip(prompt, parts, strict=True):
        if isinstance(part, Span):
            spans.append(PlacedSpan(start, part))
        start += len(its)
    return entries, tuple(spans)


def fewest_prompt_tokens(tokenizer: Tokenizer, prompt: PlacedPrompt) -> int:
    """A lower bound on the prompt's number of tokens, computed without tokenizing it."""
    if isinstance(prompt, str):
        return tokenizer.fewest_tokens(prompt)
    found = 0
    for part in prompt:
        match part:
            case str():
                found += tokenizer.fewest_tokens(part)
            case Span():
                found += part.length
            case _:
                found += 1
    return found


def echo(tokenizer: Tokenizer, prompt: PlacedPrompt, token_ids: Sequence[int]) -> list[PromptToken]:
    """The prompt's tokens with the bytes that each adds to its text.

    A BOS token or space that the tokenizer adds before a text gets no bytes, so the joined bytes are the prompt as it
    was sent. In a prompt of token ids, every token is written out.
    """
    pieces = [tokenizer.token_bytes(token_id, render_special=True) for token_id in token_ids]
    return echo_of(pieces, prompt, token_ids, bos_token_id=tokenizer.bos_token_id)


def echo_of(
    pieces: list[bytes], prompt: PlacedPrompt, token_ids: Sequence[int], *, bos_token_id: int | None
) -> list[PromptToken]:
    """The prompt's tokens with their bytes, see `echo`; `pieces` are the texts of all tokens."""
    pieces = list(pieces)
    if isinstance(prompt, str) and pieces:
        _drop_additions(pieces, prompt.encode(), has_bos=token_ids[0] == bos_token_id)
    return [PromptToken(*pair) for pair in zip(token_ids, pieces, strict=True)]


def _drop_additions(pieces: list[bytes], text: bytes, *, has_bos: bool) -> None:
    if has_bos and not text.startswith(pieces[0]):
        pieces[0] = b""
    if b"".join(pieces) == b" " + text:
        first = next(index for index, piece in enumerate(pieces) if piece)
        pieces[first] = pieces[first][1:]


def find_fill_tokens(tokenizer: Tokenizer) -> FillTokens | None:
    """The fill-in-the-middle tokens, found by their spellings; None if the vocabulary lacks a required one."""
    return fill_tokens(lambda spelling: _special(tokenizer, spelling))


def find_markers(tokenizer: Tokenizer) -> list[str]:
    """Markers of chat formats, such as `<tool_call>`, that are single tokens of the vocabulary."""
    from stoker.text.chat_formats.table import ALL_MARKER_TOKENS

    return sorted(marker for marker in ALL_MARKER_TOKENS if len(tokenizer.encode(marker)) == 1)


def fill_tokens(special: Callable[[str], int | None]) -> FillTokens | None:
    """The fill-in-the-middle tokens; `special` returns the id of a spelling that is one control token, or else None."""

    def first(spellings: Sequence[str]) -> int | None:
        return next((token_id for text in spellings if (token_id := special(text)) is not None), None)

    prefix, suffix, middle = map(first, (_PREFIX, _SUFFIX, _MIDDLE))
    if prefix is None or suffix is None or middle is None:
        return None
    return FillTokens(
        prefix=prefix, suffix=suffix, middle=middle, repository=first(_REPOSITORY), separator=first(_SEPARATOR)
    )


def with_text_bias(tokenizer: Tokenizer, sampling: SamplingParams, text_bias: Mapping[str, float]) -> SamplingParams:
    """Adds logit biases of texts: each applies to all tokens of its text. Biases given by token id take precedence."""
    if not text_bias:
        return sampling
    biases = {
        token_id: bias for text, bias in text_bias.items() for token_id in _encode(tokenizer, text, parse_special=False)
    }
    return replace(sampling, logit_bias={**biases, **(sampling.logit_bias or {})})


def _special(tokenizer: Tokenizer, spelling: str) -> int | None:
    """The token id of a spelling that is one control token; None otherwise."""
    token_ids = tokenizer.encode(spelling)
    return token_ids[0] if len(token_ids) == 1 and not tokenizer.token_bytes(token_ids[0]) else None


def _encode(tokenizer: Tokenizer, part: int | str | Span, parse_special: bool) -> Sequence[Entry]:
    match part:
        case str():
            return tokenizer.encode(part, parse_special=parse_special)
        case Span():
            return part.entries()
        case _:
            return [part]
