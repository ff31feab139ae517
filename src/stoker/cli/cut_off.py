"""Explains why an answer was cut off before the model ended it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.core.params import NO_LIMIT

if TYPE_CHECKING:
    from stoker.core.params import SamplingParams
    from stoker.engine.cards import ModelCard
    from stoker.llm.completion import Completion


def why_cut_off(completion: Completion, card: ModelCard, sampling: SamplingParams, how: str) -> str | None:
    """A message with the reason. None if the answer was not cut off, or has the length that the user set.

    Args:
        completion: the whole answer.
        card: the card of the model.
        sampling: the sampling parameters that the user gave.
        how: what sets the maximum length of answers, such as `--max-tokens N`.
    """
    if completion.finish_reason != "length":
        return None
    asked, usual = sampling.max_tokens, card.sampling.max_tokens
    limit = usual if asked is None else asked
    if limit in (None, NO_LIMIT) or completion.usage.completion_tokens < limit:
        return f"the answer was cut off: the context of {card.context_size} tokens is full"
    if asked is not None:
        return None
    return f"the answer was cut off after {limit} tokens, the default length: {how} sets another one, -1 none"
