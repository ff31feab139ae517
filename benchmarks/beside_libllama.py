"""The native executor beside libllama on one file, in turns: what a prompt takes, and steps of several streams.

    python benchmarks/synthetic.py e2b.gguf --family gemma4-e2b
    python benchmarks/beside_libllama.py e2b.gguf --prompt 256 --streams 1 8
    python benchmarks/beside_libllama.py e2b.gguf --prompt 32 --streams 1 8 16 --threads 2

CPU seconds of one thread say which does less work even where other programs take most of the machine. With several
threads the clock counts, which means something only on a machine that does nothing else. The median of the rounds
counts. Whole servers are compared by `beside_llama_server.py`.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from stoker.backends.llama.native import library
from stoker.backends.native import NativeBackend, NativeOptions
from stoker.core.batch import Batch, Chunk, Truncate
from stoker.models.description import vocab_size
from stoker.models.gguf import part_paths, read_gguf
from stoker.models.store import resolve

_STEPS = 8
"""Of each sequence, in a round."""


class Native:
    """Prompts and steps on the own executor."""

    def __init__(self, backend: NativeBackend, prompt: Sequence[int]) -> None:
        self._backend, self._prompt = backend, tuple(prompt)

    def prompts(self, streams: int) -> None:
        """A prompt in each of so many slots, emptied before."""
        for slot in range(streams):
            self._backend.forward(Batch(0, (Chunk(slot, 0, self._prompt, 1),), (Truncate(slot, 0),)))

    def steps(self, streams: int) -> None:
        """Behind them, in all slots at once."""
        for at in range(_STEPS):
            start = len(self._prompt) + at
            chunks = tuple(Chunk(slot, start, (self._prompt[at],), 1) for slot in range(streams))
            self._backend.forward(Batch(0, chunks))


class Libllama:
    """The same on libllama."""

    def __init__(self, path: Path, prompt: Sequence[int], streams: int, threads: int) -> None:
        self._lib, self._prompt = library(), list(prompt)
        self._model = self._lib.llama_model_load_from_file(os.fsencode(path), self._lib.llama_model_default_params())
        params = self._lib.llama_context_default_params()
        params.n_ctx = streams * (len(prompt) + _STEPS + 32)
        params.n_batch = params.n_ubatch = 512
        params.n_seq_max, params.kv_unified = streams, True
        params.n_threads = params.n_threads_batch = threads
        self._context = self._lib.llama_init_from_model(self._model, params)

    def close(self) -> None:
        self._lib.llama_free(self._context)
        self._lib.llama_model_free(self._model)

    def prompts(self, streams: int) -> None:
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), True)
        for slot in range(streams):
            self._decode([(slot, at, token_id) for at, token_id in enumerate(self._prompt)])

    def steps(self, streams: int) -> None:
        for at in range(_STEPS):
            self._decode([(slot, len(self._prompt) + at, self._prompt[at]) for slot in range(streams)], all_rows=True)

    def _decode(self, entries: list[tuple[int, int, int]], *, all_rows: bool = False) -> None:
        """Entries of slot, position and token; with rows of logits of all, or of the last one."""
        batch = self._lib.llama_batch_init(len(entries), 0, 1)
        batch.n_tokens = len(entries)
        for index, (slot, position, token_id) in enumerate(entries):
            batch.token[index], batch.pos[index] = token_id, position
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, slot
            batch.logits[index] = all_rows or index == len(entries) - 1
        assert self._lib.llama_decode(self._context, batch) == 0
        self._lib.llama_synchronize(self._context)
        self._lib.llama_batch_free(batch)


@contextmanager
def both(path: Path, prompt: Sequence[int], streams: int, threads: int) -> Generator[tuple[Native, Libllama]]:
    context_size = len(prompt) + _STEPS + 32
    num_cells = streams * context_size
    options = NativeOptions(context_size=context_size, kv_tokens=num_cells, num_slots=streams, threads=threads)
    files = [read_gguf(part) for part in part_paths(path)]
    libllama = Libllama(path, prompt, streams, threads)
    with NativeBackend(files, options) as backend:
        yield Native(backend, prompt), libllama
    libllama.close()
    for file in files:
        file.close()


def measure(runs: Sequence[Callable[[], Any]], rounds: int, clock: Callable[[], float]) -> list[float]:
    """Seconds of each, the median of so many rounds in which all take turns; a first round is thrown away."""
    found: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds + 1):
        for run, seconds in zip(runs, found, strict=True):
            begin = clock()
            run()
            seconds.append(clock() - begin)
    return [median(seconds[1:]) for seconds in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--prompt", type=int, default=256, help="tokens, at most 512")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="1: CPU seconds are shown; more: the clock's")
    asked = parser.parse_args()
    clock = time.process_time if asked.threads == 1 else time.perf_counter
    path, random = resolve(asked.model), np.random.default_rng(0)
    with read_gguf(path) as gguf:
        num_ids = vocab_size(gguf)
    prompt = [int(random.integers(num_ids)) for _ in range(asked.prompt)]
    print(f"{'streams':>7} {'':12} {'native s':>9} {'libllama s':>10} {'ratio':>6}")
    for streams in asked.streams:
        with both(path, prompt, streams, asked.threads) as (native, libllama):
            runs = [partial(run, streams) for of in (native, libllama) for run in (of.prompts, of.steps)]
            prompts, steps, their_prompts, their_steps = measure(runs, asked.rounds, clock)
        for what, ours, theirs in (("prompts", prompts, their_prompts), (f"{_STEPS} steps", steps, their_steps)):
            print(f"{streams:7} {what:12} {ours:9.2f} {theirs:10.2f} {theirs / ours:6.2f}", flush=True)


if __name__ == "__main__":
    main()
