"""What a block's file costs, written and read, past the system's page cache and through it: CPU time and time, a block.

    python benchmarks/kv_files.py --folder . --bytes 737280

Checksums, names and headers are part of it; memory to read into has been used before. The best of some repetitions.
What is read through the page cache is in it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np

from stoker.cache.directory import BlockDirectory

_NUM_BLOCKS, _TIMES = 64, 5
_FINGERPRINT = b"1" * 32


def main() -> None:
    parser = argparse.ArgumentParser(description="What a block's file costs, see the head of this file")
    parser.add_argument("--folder", default=".", help="on the disk that is measured")
    parser.add_argument("--bytes", type=int, default=737_280, help="in a block")
    given = parser.parse_args()
    measure(given.folder, given.bytes, "past the page cache")
    with patch("stoker.cache.file_io._set_direct", return_value=False):
        measure(given.folder, given.bytes, "through it")


def measure(folder: str, num_bytes: int, way: str) -> None:
    """Prints a line for writing and one for reading."""
    with tempfile.TemporaryDirectory(dir=folder) as root:
        directory = BlockDirectory(Path(root))
        content = np.random.default_rng(0).integers(0, 255, num_bytes, np.uint8)
        blocks = [directory.arena.take(num_bytes) for _ in range(_NUM_BLOCKS)]
        for block in blocks:
            np.asarray(block)[:] = content

        def write(time: int) -> None:
            for number, block in enumerate(blocks):
                directory.write(_FINGERPRINT, _key(time, number), block)

        def read(time: int) -> None:
            for number in range(_NUM_BLOCKS):
                directory.read(_FINGERPRINT, _key(time, number))

        for name, call in (("write", write), ("read", read)):
            print(f"{name:5} {way:20} {_best_us(call)}", flush=True)


def _key(time: int, number: int) -> bytes:
    return bytes([time, number]) * 8


def _best_us(call: Callable[[int], None]) -> str:
    spent: list[tuple[float, float]] = []
    for repetition in range(_TIMES):
        began = time.thread_time(), time.monotonic()
        call(repetition)
        spent.append((time.thread_time() - began[0], time.monotonic() - began[1]))
    cpu, wall = (min(times) / _NUM_BLOCKS * 1e6 for times in zip(*spent, strict=True))
    return f"{cpu:5.0f} µs of CPU time, {wall:5.0f} µs"


if __name__ == "__main__":
    main()
