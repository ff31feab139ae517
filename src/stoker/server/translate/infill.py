"""A prompt that makes a model write what belongs between two texts. It knows no API."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.engine.cards import FillTokens, ModelCard
from stoker.engine.protocol import Prompt
from stoker.errors import UnsupportedParameter


def infill_prompt(card: ModelCard, prefix: str, suffix: str, files: Sequence[tuple[str, str]] = ()) -> Prompt:
    """The texts around the gap, with the tokens between them that the model was trained with.

    Its texts are to be tokenized with `parse_special=False`: code may spell a special token.

    Args:
        card: of the model.
        prefix: what stands before the gap.
        suffix: what stands behind it.
        files: further files of the same project, as names and texts, the most relevant one last.

    Raises:
        UnsupportedParameter: the model has no such tokens; `fields["parameter"]` is `suffix`.
    """
    tokens = card.fill_tokens
    if tokens is None:
        message = f"`suffix` is not supported by {card.name}: its vocabulary has no tokens for filling in the middle"
        raise UnsupportedParameter(message, parameter="suffix")
    return [*_project(tokens, files), tokens.prefix, prefix, tokens.suffix, suffix, tokens.middle]


def _project(tokens: FillTokens, files: Sequence[tuple[str, str]]) -> list[int | str]:
    """As llama-server writes it; a model that knows no repositories gets the texts one behind the other."""
    if tokens.separator is None:
        return ["\n".join(text for _, text in files) + "\n"] if files else []
    head: list[int | str] = [] if tokens.repository is None else [tokens.repository, "project\n"]
    parts = [part for name, text in files for part in (tokens.separator, f"{name}\n", f"{text}\n")]
    return [*head, *parts] if files else []
