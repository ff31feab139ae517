"""Builds prompts for filling in the middle (infill): text between a prefix and a suffix. Independent of the API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

from stoker.engine.cards import FillTokens, ModelCard
from stoker.engine.protocol import Prompt
from stoker.errors import UnsupportedParameter

Tokenizer: TypeAlias = Callable[[str], Awaitable[Sequence[int]]]
"""Tokenizes a text without BOS and without special tokens."""
_Part: TypeAlias = list[int | str]
"""Part of a prompt: token ids, and texts that are not tokenized yet."""

_REPOSITORY = "myproject\n"
_CURRENT_FILE = "filename\n"
_SNIPPET = "\n\n--- snippet ---\n\n"
"""Text that introduces another file, for a model without a token for it."""
_MOST_CHARS = 64
"""Rough maximum of characters per token, by which a text is cut before it is tokenized to fit into the room."""
_MAX_OWN_TOKENS = 8 + len(_REPOSITORY) + len(_CURRENT_FILE)
"""Maximum number of tokens that a prompt has besides those of its texts."""


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
    """Further files of the same project, as names and texts, the most relevant one last. None = the prompt mentions no
    project, not even the file that contains the gap."""


def infill_prompt(card: ModelCard, prefix: str, suffix: str) -> Prompt:
    """The texts around the gap, with the model's special tokens for filling in the middle between them.

    Tokenize the texts of this prompt with `parse_special=False`, because code may contain the text of a special token.

    Args:
        card: card of the model.
        prefix: the text before the gap.
        suffix: the text after the gap.

    Raises:
        UnsupportedParameter: the model has no such special tokens; `fields["parameter"]` is `suffix`.
    """
    tokens = card.fill_tokens
    if tokens is None:
        message = f"`suffix` is not supported by {card.name}: its vocabulary has no tokens for filling in the middle"
        raise UnsupportedParameter(message, parameter="suffix")
    return [tokens.prefix, prefix, tokens.suffix, suffix, tokens.middle]


async def fitting_prompt(tokens: FillTokens, gap: Gap, room: int, tokenize: Tokenizer) -> Prompt:
    """An infill prompt that begins with further files of the project, as in llama-server, and fits into the room.

    Text that does not fit is omitted: first whole files, beginning with the first one, then the beginning of the prefix
    and the end of the suffix. If both need to be cut, the prefix gets three times as much room as the suffix.

    Args:
        tokens: the model's special tokens for filling in the middle.
        gap: the gap. Its `beginning` is never cut.
        room: maximum length of the prompt, in tokens.
        tokenize: called only if it is not certain that everything fits.
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
    """Upper bound of a part's tokens: each token has at least one byte, and some tokenizers prepend a space."""
    return 1 if isinstance(part, int) else len(part.encode("utf-8", "surrogatepass")) + 1


async def _cut(gap: Gap, room: int, tokenize: Tokenizer) -> tuple[_Part, _Part, int]:
    """The tokens of prefix and suffix that fit into the room, and the room that remains."""
    most_chars = _MOST_CHARS * (room + 1)
    before, behind = await tokenize(gap.prefix[-most_chars:]), await tokenize(gap.suffix[:most_chars])
    num_behind = min(len(behind), max(room // 4, room - len(before)))
    num_before = min(len(before), room - num_behind)
    # The empty text marks this as a prompt of texts, so that BOS is prepended.
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
