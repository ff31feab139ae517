"""Verifies drafts of speculative decoding: samples row by row, as without drafts, until a token differs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from stoker.backends.base import Logits
from stoker.core.batch import Batch
from stoker.sampling.sampler import Choice, RowState, Sampler


def sample_drafted(
    batch: Batch, logits: Logits, maxima: Logits | None, rows: Sequence[RowState], sampler: Sampler
) -> list[list[Choice]]:
    """Samples a step with drafts.

    ```
        chunk     last    d1      d2      d3
        rows      row 0   row 1   row 2   row 3
        chosen    d1      d2      x               a row is sampled only if the row before gave the drafted token
    ```

    Args:
        batch: the decoded chunks, each with a row for every entry.
        logits: the rows of the batch, `(batch.num_rows, vocab_size)`.
        maxima: as in `Sampler.sample`.
        rows: the sampler's state of each chunk; every choice is added to it.
        sampler: the sampler that is also used without drafts.

    Returns:
        The choices of each chunk, at least one per chunk: accepted draft tokens, then one more token.
    """
    first_rows = accumulate([chunk.num_logits for chunk in batch.chunks], initial=0)
    chosen: list[list[Choice]] = []
    for chunk, state, first in zip(batch.chunks, rows, first_rows, strict=False):
        choices: list[Choice] = []
        for row, expected in enumerate((*chunk.entries[1:], None), first):
            span = slice(row, row + 1)
            choices += sampler.sample(logits[span], [state], None if maxima is None else maxima[span])
            if choices[-1].token_id != expected or state.completes_at is not None:
                break
        chosen.append(choices)
    return chosen
