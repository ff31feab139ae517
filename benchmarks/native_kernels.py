"""How fast the native executor's products are, by tensor type and batch, next to how fast memory can be read.

    python benchmarks/native_kernels.py --types Q4_0 Q4_K --rows 1 8 512

Each thread takes its part of one matrix's tiles over and over, as in a forward pass. The best time of each thread
counts, and of these the longest: the other runs measure the neighbours. GB/s are of packed weights; an operation is a
multiplication or an addition; `memory` is the part of a measured read sweep that GB/s are. Give a small matrix to see
what the arithmetic can do, and one much larger than the caches to see what the memory can.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import gguf
import numpy as np
from limits import read_sweep
from numpy.typing import NDArray

from stoker import _native
from stoker.backends.cores import usable_cores

_TYPES = ("Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K")
_ROWS = (1, 2, 4, 8, 12, 16, 32, 64, 128, 512)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Of one matrix: outputs and inputs."""

    outputs: int
    inputs: int


def best_s(work: Callable[[int, int], object], count: int, threads: int, budget_s: float) -> float:
    """Runs `work(first, last)` for equal parts of `count` on all threads, at least three times each."""

    def repeat(first: int, last: int) -> float:
        times: list[float] = []
        end = time.perf_counter() + budget_s
        while len(times) < 3 or time.perf_counter() < end:
            start = time.perf_counter()
            work(first, last)
            times.append(time.perf_counter() - start)
        return min(times)

    edges = [count * i // threads for i in range(threads + 1)]
    with ThreadPoolExecutor(threads) as pool:
        return max(pool.map(repeat, edges[:-1], edges[1:]))


def aligned(num_bytes: int) -> NDArray[np.uint8]:
    memory = np.empty(num_bytes + (2 << 20), np.uint8)
    start = -memory.ctypes.data % (2 << 20)
    return memory[start : start + num_bytes]


def packed_matrix(kind: int, shape: Shape, threads: int) -> tuple[NDArray[np.uint8], float]:
    """A matrix of random bytes, and how many bytes of the file are packed in a second."""
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
    row_bytes = shape.inputs // block * size
    source = np.random.default_rng(1).integers(0, 120, (shape.outputs, row_bytes), dtype=np.uint8)
    packed = aligned(_native.packed_bytes(kind, shape.outputs, shape.inputs))
    tile_bytes = packed.size // (shape.outputs // 16)

    def part(first: int, last: int) -> None:
        rows = source[first * 16 : last * 16]
        _native.pack(kind, rows, len(rows), shape.inputs, packed[first * tile_bytes : last * tile_bytes])

    return packed, source.size / best_s(part, shape.outputs // 16, threads, 0.5)


def measure(name: str, rows: list[int], shape: Shape, threads: int, kernels: str, budget_s: float) -> None:
    kind = int(gguf.GGMLQuantizationType[name])
    memory = read_sweep(threads)
    packed, packing = packed_matrix(kind, shape, threads)
    size = f"{shape.outputs} x {shape.inputs}, {packed.nbytes / 1e6:.1f} MB"
    print(f"\n{name}  {size}, packed at {packing / 1e9:.2f} GB/s; memory {memory / 1e9:.1f} GB/s")
    print(f"{'rows':>6} {'ms':>9} {'GB/s':>7} {'memory':>7} {'G op/s':>8}")
    for count in rows:
        x = np.random.default_rng(2).standard_normal((count, shape.inputs)).astype(np.float32)
        y = np.empty((count, shape.outputs), np.float32)

        def part(first: int, last: int, x: NDArray[np.float32] = x, y: NDArray[np.float32] = y) -> None:
            _native.matmul(kind, packed, shape.outputs, shape.inputs, x, y, first, last, kernels)

        seconds = best_s(part, shape.outputs // 16, threads, budget_s)
        speed = packed.nbytes / seconds
        ops = 2 * count * shape.outputs * shape.inputs / seconds
        print(f"{count:>6} {seconds * 1e3:>9.3f} {speed / 1e9:>7.1f} {speed / memory:>7.0%} {ops / 1e9:>8.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", nargs="+", default=list(_TYPES))
    parser.add_argument("--rows", nargs="+", type=int, default=list(_ROWS))
    parser.add_argument("--outputs", type=int, default=32768)
    parser.add_argument("--inputs", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--kernels", default="", help="one of: " + ", ".join(_native.kernel_names()))
    parser.add_argument("--seconds", type=float, default=0.5, help="spent on each number")
    options = parser.parse_args()
    print(f"kernels: {options.kernels or _native.best_kernels()}, {options.threads} threads")
    shape = Shape(outputs=options.outputs, inputs=options.inputs)
    for name in options.types:
        measure(name, options.rows, shape, options.threads, options.kernels, options.seconds)


if __name__ == "__main__":
    main()
