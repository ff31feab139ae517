"""Where the state of a model that cannot be cut back is worth keeping; it keeps nothing.

A recurrent state knows its whole past and cannot be shortened, so it helps a later prompt only if it was kept at a
length that the two have in common. Prompts of one conversation have their message borders in common.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import chain

from stoker.core.batch import Entry
from stoker.core.blocks import BLOCK_ENTRIES

MAX_CHECKPOINTS = 8
"""Most states kept of one prompt."""
MAX_RESIDENT = 4
"""Most checkpoints that one prompt leaves in the KV pool, where each takes a slot."""
MIN_LENGTH = 64
"""A shorter beginning is computed again as quickly."""
MIN_GAP = 64
"""Two states closer together than this would serve the same prompts."""
EVERY = 8192
"""Besides, one state after every so many entries, as in rig-llama-cpp."""


def points(entries: Sequence[Entry], eog_token_ids: Container[Entry]) -> list[int]:
    """Every length at which a state may be kept or found, ascending: message borders and whole blocks."""
    blocks = range(BLOCK_ENTRIES, len(entries) + 1, BLOCK_ENTRIES)
    return sorted(_borders(entries, eog_token_ids).union(blocks))


def choose(
    entries: Sequence[Entry], limit: int, eog_token_ids: Container[Entry], most: int = MAX_CHECKPOINTS
) -> list[int]:
    """Lengths at which the states of a prompt are kept, ascending: at most `most`, none above `limit`.

    Always the last one before the end (the next prompt may be another question about the same text). Then, with gaps,
    the first message border (a system prompt serves many conversations), the others from the last to the first, and
    one every `EVERY` entries.
    """
    possible = [length for length in points(entries, eog_token_ids) if MIN_LENGTH <= length <= limit]
    borders = sorted(_borders(entries, eog_token_ids).intersection(possible))
    rare = [length for length in possible[:-1] if length % EVERY == 0]
    last = possible[-1:]
    borders = [length for length in borders if length not in last]
    chosen: list[int] = []
    for length in chain(borders[:1], reversed(borders), reversed(rare)):
        if len(chosen) < most - 1 and all(abs(length - other) >= MIN_GAP for other in chosen):
            chosen.append(length)
    return [*sorted(chosen), *last]


def with_parting(lengths: Sequence[int], parting: int, reused: int) -> list[int]:
    """These lengths, and the one at which a prompt parts from another prompt, if it is far from what can be reused.

    Not every template ends a message between what prompts have in common and what they have not: Gemma's puts system
    prompts into the first question. The second prompt that begins so keeps a state there, for all that follow.
    """
    serves_as_well = any(0 <= parting - other < MIN_GAP for other in lengths)
    is_far = parting >= max(MIN_LENGTH, reused + MIN_GAP)
    return sorted([*lengths, parting]) if is_far and not serves_as_well else list(lengths)


def _borders(entries: Sequence[Entry], eog_token_ids: Container[Entry]) -> set[int]:
    """A message ends before the token that ends it if it was generated, and after it if it was read."""
    ends = [index for index, entry in enumerate(entries) if entry in eog_token_ids]
    return {length for end in ends for length in (end, end + 1) if length > 0}
