"""What it costs to take KV out of a model's cache and to put it back, beside what it costs to compute it.

    python benchmarks/kv_bytes.py MODEL.gguf [--tokens 1024]

Each figure is the best of several runs: on a busy machine the others say more about the neighbours.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

from stoker.backends.llama import LlamaBackend, LlamaOptions
from stoker.core.batch import Batch, Chunk, Truncate
from stoker.core.blocks import BLOCK_ENTRIES
from stoker.core.tiers import KVBytes

_RUNS = 5


def best_s(work: Callable[[], object]) -> float:
    """The shortest of several runs, in seconds."""

    def timed() -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    return min(timed() for _ in range(_RUNS))


def report(backend: LlamaBackend, num_tokens: int) -> None:
    """Prints microseconds per token, and bytes."""
    blocks = [(start, start + BLOCK_ENTRIES) for start in range(0, num_tokens, BLOCK_ENTRIES)]
    token_ids = tuple(1000 + index % 500 for index in range(num_tokens))
    states: list[KVBytes] = []

    def compute() -> None:
        backend.forward(Batch(0, (), (Truncate(0, 0),)))
        for start in range(0, num_tokens, backend.info.max_batch_tokens):
            part = token_ids[start : start + backend.info.max_batch_tokens]
            backend.forward(Batch(0, (Chunk(0, start, part),)))

    def export() -> None:
        states[:] = [backend.export_kv(0, *block) for block in blocks]

    def restore() -> None:
        backend.forward(Batch(0, (), (Truncate(1, 0),)))
        for block, state in zip(blocks, states, strict=True):
            backend.import_kv(1, *block, state)

    for name, work in (("compute", compute), ("export", export), ("restore", restore)):
        print(f"{name:8}{best_s(work) / num_tokens * 1e6:10.1f} µs per token")
    print(f"{'size':8}{sum(map(len, states)) / num_tokens:10.0f} bytes per token, in blocks of {BLOCK_ENTRIES}")


def main() -> None:
    """Measures one model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=1024)
    arguments = parser.parse_args()
    num_tokens = arguments.tokens // BLOCK_ENTRIES * BLOCK_ENTRIES
    options = LlamaOptions(context_size=num_tokens, kv_tokens=2 * num_tokens, num_slots=4)
    with LlamaBackend(arguments.model, options) as backend:
        report(backend, num_tokens)


if __name__ == "__main__":
    main()
