"""Small steps that the tests of the llama backend share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stoker.backends.llama import LlamaBackend, LlamaOptions
from stoker.core.batch import Batch, CacheOp, Chunk

Rows = NDArray[np.float32]

MEAN_TOLERANCE = 0.4
"""Mean absolute difference of logits (standard deviation 5) between ways of computing the same thing.

libllama takes other CPU kernels for other batch shapes, and quantised activations turn the last bit into a mean of
about 0.15 on smollm2 and 0.25 on gemma3. A row of the wrong position or the wrong KV differs by 2 and more.
"""


def open_backend(
    path: Path,
    *,
    kv_tokens: int = 4096,
    num_slots: int = 8,
    max_batch_tokens: int = 512,
    max_ubatch_tokens: int = 512,
) -> LlamaBackend:
    options = LlamaOptions(
        context_size=2048,
        kv_tokens=kv_tokens,
        num_slots=num_slots,
        max_batch_tokens=max_batch_tokens,
        max_ubatch_tokens=max_ubatch_tokens,
        threads=1,  # the barriers of several threads cost much where other tests want the same cores
    )
    return LlamaBackend(path, options)


def step(backend: LlamaBackend, *chunks: Chunk, ops: Sequence[CacheOp] = ()) -> Rows:
    """One forward pass; the rows are the caller's own."""
    return backend.forward(Batch(step_id=0, chunks=chunks, ops=tuple(ops))).copy()


def compute(
    backend: LlamaBackend, slot: int, token_ids: Sequence[int], *, start: int = 0, sizes: Iterable[int] = ()
) -> Rows:
    """All rows of `token_ids`, computed in chunks of these sizes (the last one repeats; none = as large as allowed)."""
    remaining, rows, at = list(sizes) or [backend.info.max_batch_tokens], list[Rows](), 0
    while at < len(token_ids):
        size = remaining.pop(0) if len(remaining) > 1 else remaining[0]
        entries = tuple(token_ids[at : at + size])
        rows.append(step(backend, Chunk(slot, start + at, entries, len(entries))))
        at += len(entries)
    return np.concatenate(rows)


def difference(one: Rows, other: Rows) -> float:
    assert one.shape == other.shape
    return float(np.abs(one - other).mean())


def assert_same(one: Rows, other: Rows) -> None:
    assert difference(one, other) < MEAN_TOLERANCE
