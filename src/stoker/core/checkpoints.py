"""Chooses the lengths at which recurrent states of a prompt (checkpoints) are worth keeping. It keeps nothing itself.

A recurrent state includes its whole past and cannot be shortened, so a later prompt can use it only if it was kept at a
length that both prompts have in common. Prompts of one conversation share their message borders.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import chain

from stoker.core.batch import Entry
from stoker.core.blocks import BLOCK_ENTRIES

MAX_CHECKPOINTS = 8
"""Maximum number of states kept per prompt."""
MAX_RESIDENT = 4
"""Maximum number of checkpoints that a prompt leaves in the KV pool, where each takes a slot."""
MIN_LENGTH = 64
"""Minimum length of a state, in entries: a shorter prefix is computed again as quickly."""
MIN_GAP = 64
"""Minimum distance of two states, in entries: closer ones would serve the same prompts."""
EVERY = 8192
"""Interval of additional states in long prompts, in entries, as in rig-llama-cpp."""


def points(entries: Sequence[Entry], eog_token_ids: Container[Entry]) -> list[int]:
    """Every length at which a state may be kept or found, ascending: message borders and whole blocks."""
    blocks = range(BLOCK_ENTRIES, len(entries) + 1, BLOCK_ENTRIES)
    return sorted(_borders(entries, eog_token_ids).union(blocks))


def choose(
    entries: Sequence[Entry], limit: int, eog_token_ids: Container[Entry], most: int = MAX_CHECKPOINTS
) -> list[int]:
    """Lengths at which the states of a prompt are kept, ascending: at most `most`, none above `limit`.

    The last possible length is always kept (the next prompt may be another question about the same text). Then follow,
    with gaps, the first message border (many conversations share a system prompt), the other borders from the last to
    the first, and one length every `EVERY` entries.
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
    """Adds `parting`, the length at which a prompt diverges from an earlier one, if it is far from all states' lengths.

    Not every chat template has a message border where prompts diverge: Gemma's puts the system prompt into the first
    question. The second prompt with a common prefix keeps a state at the end of that prefix, for all later prompts.
    """
    serves_as_well = any(0 <= parting - other < MIN_GAP for other in lengths)
    is_far = parting >= max(MIN_LENGTH, reused + MIN_GAP)
    return sorted([*lengths, parting]) if is_far and not serves_as_well else list(lengths)


def _borders(entries: Sequence[Entry], eog_token_ids: Container[Entry]) -> set[int]:
    """Message borders: the lengths before and after each end token, since generated messages are kept without it."""
    ends = [index for index, entry in enumerate(entries) if entry in eog_token_ids]
    return {length for end in ends for length in (end, end + 1) if length > 0}
