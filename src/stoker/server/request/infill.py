"""A prompt that makes a model write what belongs between two texts. It knows no API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

from stoker.engine.cards import FillTokens, ModelCard
from stoker.engine.protocol import Prompt
from stoker.errors import UnsupportedParameter

Tokenizer: TypeAlias = Callable[[str], Awaitable[Sequence[int]]]
"""The tokens of a part of a prompt, without BOS, and none of them special."""
_Part: TypeAlias = list[int | str]
"""Part of a prompt: token ids, and texts that are not tokenized yet."""

_REPOSITORY = "myproject\n"
_CURRENT_FILE = "filename\n"
_SNIPPET = "\n\n--- snippet ---\n\n"
"""Text that introduces another file, for a model without a token for it."""
_MOST_CHARS = 64
"""Rough maximum of characters per token: a text with more per token of room is not tokenized to its end."""
_MAX_OWN_TOKENS = 8 + len(_REPOSITORY) + len(_CURRENT_FILE)
"""Maximum number of tokens of a prompt besides those of its texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A gap in a text, and the texts around it."""

    prefix: str
    """The text before the gap."""
    suffix: str
    """The text after the gap."""
    beginning: str = ""
    """The beginning of the missing text."""
    files: Sequence[tuple[str, str]] | None = None
    """Further files of the same project, as names and texts, the most relevant one last. None = the model is told
    nothing of a project, not even that the gap is in a file of one."""


def infill_prompt(card: ModelCard, prefix: str, suffix: str) -> Prompt:
    """The texts around the gap, with the tokens between them that the model was trained with.

    Tokenize its texts with `parse_special=False`, because code may spell a special token.

    Args:
        card: of the model.
        prefix: the text before the gap.
        suffix: the text after the gap.

    Raises:
        UnsupportedParameter: the model has no such tokens; `fields["parameter"]` is `suffix`.
    """
    tokens = card.fill_tokens
    if tokens is None:
        message = f"`suffix` is not supported by {card.name}: its vocabulary has no tokens for filling in the middle"
        raise UnsupportedParameter(message, parameter="suffix")
    return [tokens.prefix, prefix, tokens.suffix, suffix, tokens.middle]


async def fitting_prompt(tokens: FillTokens, gap: Gap, room: int, tokenize: Tokenizer) -> Prompt:
    """The same with the files before it, as llama-server writes it, and no longer than there is room for.

    What does not fit is left out: first whole files, beginning with the first one, then the beginning of the prefix and
    the end of the suffix, of which the prefix gets three times as much room if both need it.

    Args:
        tokens: of the model.
        gap: which one. How it begins is never cut.
        room: in tokens.
        tokenize: asked only where it is not certain that everything fits.
    """
    files = [_file(tokens, name, text) for name, text in gap.files or ()]
    prefix, suffix = _Part([gap.prefix]), _Part([gap.suffix])
    beginning = _Part([gap.beginning] if gap.beginning else [])
    room -= _MAX_OWN_TOKENS
    if sum(map(_most_tokens, (*prefix, *suffix, *beginning, *chain.from_iterable(files)))) > room:
        beginning = _Part(await tokenize(gap.beginning))
        prefix, suffix, room = await _cut(gap, max(room - len(beginning), 0), tokenize)
        files = await _last_that_fit(files, room, tokenize)
    head = [] if gap.files is None else _project(tokens, files)
    return [*head, tokens.prefix, *prefix, tokens.suffix, *suffix, tokens.middle, *beginning]


def _most_tokens(part: int | str) -> int:
    """A token is at least a byte; some tokenizers put a space before a text."""
    return 1 if isinstance(part, int) else len(part.encode("utf-8", "surrogatepass")) + 1


async def _cut(gap: Gap, room: int, tokenize: Tokenizer) -> tuple[_Part, _Part, int]:
    """Prefix and suffix, and the room that they leave."""
    most_chars = _MOST_CHARS * (room + 1)
    before, behind = await tokenize(gap.prefix[-most_chars:]), await tokenize(gap.suffix[:most_chars])
    num_behind = min(len(behind), max(room // 4, room - len(before)))
    num_before = min(len(before), room - num_behind)
    # The empty text says that this is a prompt of texts, which gets BOS.
    prefix: _Part = ["", *before[len(before) - num_before :]]
    return prefix, _Part(behind[:num_behind]), room - num_before - num_behind


async def _last_that_fit(files: Sequence[_Part], room: int, tokenize: Tokenizer) -> list[_Part]:
    fitting: list[_Part] = []
    for file in reversed(files):
        if sum(len(part) for part in file if isinstance(part, str)) > _MOST_CHARS * (room + 1):
            break
        tokenized = _Part()
        for part in file:
            tokenized += [part] if isinstance(part, int) else await tokenize(part)
        room -= len(tokenized)
        if room < 0:
            break
        fitting.insert(0, tokenized)
    return fitting


def _file(tokens: FillTokens, name: str, text: str) -> _Part:
    return [_SNIPPET, text] if tokens.separator is None else [tokens.separator, f"{name}\n", text]


def _project(tokens: FillTokens, files: Sequence[_Part]) -> _Part:
    head = [] if tokens.repository is None else [tokens.repository, _REPOSITORY]
    tail = [] if tokens.separator is None else [tokens.separator, _CURRENT_FILE]
    return [*head, *chain.from_iterable(files), *tail]
