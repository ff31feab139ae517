"""What memory for one exported block costs, by where it comes from: CPU time of filling it, a block.

    python benchmarks/kv_memory.py --bytes 737280

`new bytes` is a fresh Python object for each block, `pieces` are mappings of 8 MiB: in pages of the usual size as they
are touched, the same had from the kernel a block at a time, and huge ones. `arena` is what the tiers use: `again` is
about memory that was given back. The second number is the best of three repetitions, in which the kernel has just got
the memory back.
"""

from __future__ import annotations

import argparse
import mmap
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from stoker.cache.arena import PIECE_BYTES, Arena

_NUM_BLOCKS, _TIMES = 80, 4
_POPULATE_WRITE = 23


def main() -> None:
    parser = argparse.ArgumentParser(description="What memory for a block costs, see the head of this file")
    parser.add_argument("--bytes", type=int, default=737_280, help="in a block, whole pages")
    size = parser.parse_args().bytes
    source = np.random.default_rng(0).integers(0, 255, size, np.uint8)
    same, arena = np.ones(size, np.uint8), Arena()
    ways: dict[str, Callable[[], Iterator[memoryview | NDArray[np.uint8]]]] = {
        "copy alone": lambda: (same for _ in range(_NUM_BLOCKS)),
        "new bytes": lambda: (memoryview(bytearray(size)) for _ in range(_NUM_BLOCKS)),
        "pieces, as touched": lambda: _parts(size, 0, ahead=False),
        "pieces, by the block": lambda: _parts(size, 0, ahead=True),
        "pieces, huge pages": lambda: _parts(size, getattr(mmap, "MADV_HUGEPAGE", 0), ahead=False),
        "arena, new": lambda: _lent(Arena(), size),
        "arena, again": lambda: _lent(arena, size),
    }
    for name, blocks in ways.items():
        first, *again = (_cpu_us(blocks(), source) for _ in range(_TIMES))
        print(f"{name:22} {first:5.0f} µs, then {min(again):5.0f}", flush=True)


def _cpu_us(blocks: Iterator[memoryview | NDArray[np.uint8]], source: NDArray[np.uint8]) -> float:
    kept = list[object]()
    began = time.thread_time()
    for block in blocks:
        np.asarray(block)[:] = source
        kept.append(block)
    return (time.thread_time() - began) / _NUM_BLOCKS * 1e6


def _lent(arena: Arena, size: int) -> Iterator[memoryview]:
    return (arena.take(size) for _ in range(_NUM_BLOCKS))


def _parts(size: int, advice: int, *, ahead: bool) -> Iterator[memoryview]:
    per_piece, piece = max(1, PIECE_BYTES // size), mmap.mmap(-1, mmap.PAGESIZE)
    for index in range(_NUM_BLOCKS):
        if index % per_piece == 0:
            piece = mmap.mmap(-1, max(PIECE_BYTES, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if advice:
                piece.madvise(advice)
        begin = index % per_piece * size
        if ahead:
            with suppress(OSError):
                piece.madvise(_POPULATE_WRITE, begin, size)
        yield memoryview(piece)[begin : begin + size]


if __name__ == "__main__":
    main()
