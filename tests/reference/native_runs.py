"""Small steps that the tests of the native backend share."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.backends.llama.native import library
from stoker.backends.native import NativeBackend, NativeOptions
from stoker.core.batch import AdapterSet, Batch, CacheOp, Chunk
from stoker.models.gguf import part_paths, read_gguf

Rows = NDArray[np.float32]


def open_native(path: Path, **options: Any) -> NativeBackend:
    """With one thread, because the barriers of several cost much where other tests want the same cores."""
    defaults: dict[str, Any] = {"context_size": 2048, "kv_tokens": 4096, "num_slots": 8, "threads": 1}
    with ExitStack() as opened:
        files = [opened.enter_context(read_gguf(part)) for part in part_paths(path)]
        return NativeBackend(files, NativeOptions(**(defaults | options)), open_file=read_gguf)


def step(backend: NativeBackend, *chunks: Chunk, ops: Sequence[CacheOp] = ()) -> Rows:
    """A copy of the rows of one batch."""
    return backend.forward(Batch(0, chunks, tuple(ops))).copy()


def all_rows(
    backend: NativeBackend,
    token_ids: Sequence[int],
    *,
    slot: int = 0,
    sizes: Sequence[int] = (),
    adapters: AdapterSet = (),
) -> Rows:
    """Rows of all positions in an empty slot, computed in chunks of these sizes, the last of them repeated."""
    limit = backend.info.max_batch_tokens
    rows, at, wanted = list[Rows](), 0, list(sizes)
    while at < len(token_ids):
        size = min(limit, wanted[0] if wanted else limit)
        wanted = wanted[1:] if len(wanted) > 1 else wanted
        entries = tuple(token_ids[at : at + size])
        rows.append(step(backend, Chunk(slot, at, entries, len(entries), adapters)))
        at += len(entries)
    return np.concatenate(rows)


def assert_same_bits_however_cut(path: Path, token_ids: Sequence[int]) -> None:
    """The rows of a prompt do not depend on its chunks, the slots beside it, or the number of threads."""
    with open_native(path) as backend:
        expected = all_rows(backend, token_ids)
        for slot, sizes in enumerate([(1,), (16, 17, 1, 40), (33, 2)], start=1):
            np.testing.assert_array_equal(all_rows(backend, token_ids, slot=slot, sizes=sizes), expected)
    with open_native(path, threads=3) as backend:
        np.testing.assert_array_equal(all_rows(backend, token_ids, sizes=(70, 1)), expected)


def assert_no_farther_than_libllama(
    path: Path, expected: Callable[[list[int]], NDArray[np.float64]], prompts: Sequence[list[int]], limit: float
) -> None:
    """Errors are below a limit, and in the mean at most 1.1 times those of libllama.

    Args:
        path: of the model.
        expected: the rows of a prompt, in float64.
        prompts: each computed by all three.
        limit: of the relative error.
    """
    ours, theirs = list[float](), list[float]()
    for token_ids in prompts:
        rows = expected(token_ids)
        with open_native(path) as backend:
            ours.append(relative_error(all_rows(backend, token_ids), rows))
        theirs.append(relative_error(libllama_rows(path, token_ids), rows))
    assert max(ours) < limit
    assert np.log(np.asarray(ours) / theirs).mean() <= np.log(1.1), (ours, theirs)


@contextmanager
def libllama_model(path: Path) -> Generator[Any]:
    lib = library()
    params = lib.llama_model_default_params()
    params.use_extra_bufts = False  # see `_has_amx` in backends/llama/weights.py
    model = lib.llama_model_load_from_file(os.fsencode(path), params)
    assert model
    try:
        yield model
    finally:
        lib.llama_model_free(model)


def libllama_rows(path: Path, token_ids: Sequence[int]) -> Rows:
    """libllama's rows of all positions, the whole prompt as one batch."""
    with libllama_model(path) as model:
        return rows_of(model, token_ids)


def rows_of(model: Any, token_ids: Sequence[int], *, threads: int = 1) -> Rows:
    """The same, of a model that is open."""
    lib, length = library(), len(token_ids)
    params = lib.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = length
    params.n_threads = params.n_threads_batch = threads
    context = lib.llama_init_from_model(model, params)
    batch = lib.llama_batch_init(length, 0, 1)
    batch.n_tokens = length
    for index, token_id in enumerate(token_ids):
        batch.token[index], batch.pos[index], batch.logits[index] = token_id, index, 1
        batch.n_seq_id[index], batch.seq_id[index][0] = 1, 0
    assert lib.llama_decode(context, batch) == 0
    vocab_size = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    rows = np.ctypeslib.as_array(lib.llama_get_logits(context), shape=(length, vocab_size)).copy()
    lib.llama_batch_free(batch)
    lib.llama_free(context)
    return rows


def relative_error(found: NDArray[Any], expected: NDArray[Any]) -> float:
    """The norm of the difference, in norms of what is expected."""
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def token_losses(rows: Rows, token_ids: Sequence[int]) -> NDArray[np.float64]:
    """In nats, of each token but the first, from the row before it; perplexity is e to their mean."""
    wide = rows[:-1].astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    return np.log(np.exp(wide).sum(axis=-1)) - wide[np.arange(len(wide)), np.asarray(token_ids[1:])]


def standard_error(values: Sequence[float] | NDArray[np.float64]) -> float:
    """Of their mean."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))
