"""How long a forward pass of the native executor takes: by prompt length, by batch, and by how long the pasts are.

    python benchmarks/native_forward.py smollm2 --rows 1 8 --pasts 0 1024 --threads 1

Random tokens, every row in a sequence of its own. The best of many runs shows the code, the median the machine with its
neighbours. With one thread it is CPU time, with several the wall's. Several types of keys and values take turns;
figures are of the first one, and how much longer the others took. `--reads` reads as many bytes as the weights have
after each pass, and says how much longer the pass took: one row cannot take less time than that. `--kv-reads` does the
same with the bytes of keys and values, for each type of them, and compares with what they add to a pass.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np
from limits import reading, work_of
from numpy.typing import NDArray

from stoker.backends.cores import usable_cores
from stoker.backends.native import KVType, NativeBackend, NativeOptions
from stoker.core.batch import Batch, CacheOp, Chunk, Truncate
from stoker.models.gguf import part_paths, read_gguf
from stoker.models.store import resolve

_STEP_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Bench:
    """A backend whose slots hold pasts of equal length."""

    backend: NativeBackend
    clock: Callable[[], float]
    runs: int

    def times_s(self, work: Callable[[], object], *others: Callable[[], object]) -> NDArray[np.float64]:
        """Shaped (runs, 1 + others): of each, in turn."""
        return np.array([[self.time_s(each) for each in (work, *others)] for _ in range(self.runs)])

    def time_s(self, work: Callable[[], object]) -> float:
        begin = self.clock()
        work()
        return self.clock() - begin

    def tokens(self, count: int) -> tuple[int, ...]:
        high = self.backend.info.vocab_size
        return tuple(np.random.default_rng(count).integers(0, high, count).tolist())

    def compute(self, *chunks: Chunk, ops: tuple[CacheOp, ...] = ()) -> None:
        self.backend.forward(Batch(0, chunks, ops))

    def prompt(self, length: int) -> None:
        for start in range(0, length, _STEP_TOKENS):
            size = min(_STEP_TOKENS, length - start)
            ops = () if start else (Truncate(0, 0),)
            self.compute(Chunk(0, start, self.tokens(size), int(start + size == length)), ops=ops)

    def fill(self, slots: int, past: int) -> None:
        for slot in range(slots):
            self.compute(ops=(Truncate(slot, 0),))
            for start in range(0, past, _STEP_TOKENS):
                self.compute(Chunk(slot, start, self.tokens(min(_STEP_TOKENS, past - start))))

    def fresh(self, rows: int) -> None:
        """As `decode`, in slots of their own that hold nothing."""
        tokens, slots = self.tokens(rows), range(rows, 2 * rows)
        cut = tuple(Truncate(slot, 0) for slot in slots)
        self.compute(*(Chunk(slot, 0, (token,), 1) for slot, token in zip(slots, tokens, strict=True)), ops=cut)

    def decode(self, rows: int, past: int) -> None:
        tokens = self.tokens(rows)
        cut = tuple(Truncate(slot, past) for slot in range(rows))
        self.compute(*(Chunk(slot, past, (tokens[slot],), 1) for slot in range(rows)), ops=cut)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="a name of the catalog, or a file")
    parser.add_argument("--prompts", type=int, nargs="*", default=[128, 512, 2048])
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 2, 4, 8, 16])
    parser.add_argument("--pasts", type=int, nargs="*", default=[0, 256, 1024])
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--kv-types", choices=get_args(KVType), nargs="+", default=[None])
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--reads", action="store_true")
    parser.add_argument("--kv-reads", action="store_true")
    options = parser.parse_args()
    longest = max([*options.prompts, *options.pasts]) + 1
    sizes = partial(
        NativeOptions,
        context_size=longest,
        kv_tokens=max(longest, max(options.rows, default=1) * (max(options.pasts, default=0) + 64)),
        num_slots=2 * max([1, *options.rows]),
        max_batch_tokens=_STEP_TOKENS,
        threads=options.threads,
    )
    with ExitStack() as opened:
        files = [opened.enter_context(read_gguf(part)) for part in part_paths(Path(resolve(options.model)))]
        backends = [opened.enter_context(NativeBackend(files, sizes(kv_type=each))) for each in options.kv_types]
        clock = time.thread_time if options.threads == 1 and not options.reads else time.perf_counter
        read = list[Callable[[], None]]()
        if options.reads:
            read.append(opened.enter_context(reading(work_of(files[0]).weight_bytes, options.threads)))
        benches = [Bench(each, clock, options.runs) for each in backends]
        if options.kv_reads:
            report_kv_reads(benches, options)
        else:
            report(benches, options, read)


def report(benches: list[Bench], options: argparse.Namespace, read: list[Callable[[], None]]) -> None:
    kv_type, *others = (each.backend.info.kv_format.split()[2] for each in benches)
    columns = [f"{other} / {kv_type}" for other in others] + [f"{kv_type} / read" for _ in read]
    print(f"{options.model}, {options.threads} threads, keys and values {kv_type}")
    print(f"{'':26} {'best ms':>9} {'median ms':>10} {'tok/s':>6}{''.join(f'{each:>13}' for each in columns)}")
    for length in options.prompts:
        times = benches[0].times_s(*(partial(each.prompt, length) for each in benches))
        print(row(f"prompt of {length}", times, length, len(benches)))
    for rows in options.rows:
        for past in options.pasts:
            for each in benches:
                each.fill(rows, past)
            times = benches[0].times_s(*(partial(each.decode, rows, past) for each in benches), *read)
            print(row(f"{rows:3} rows, pasts of {past}", times, rows, len(benches)))


def report_kv_reads(benches: list[Bench], options: argparse.Namespace) -> None:
    """What pasts add to a pass, and what reading as many bytes takes; in turn, medians of the runs."""
    print(
        f"{options.model}, {options.threads} threads; ms: a pass, the same without a past, reading its KV; added / read"
    )
    for rows in options.rows:
        for past in filter(None, options.pasts):
            for bench in benches:
                info = bench.backend.info
                bench.fill(rows, past)
                with reading(rows * past * info.kv_bytes_per_token, options.threads) as read:
                    times = 1e3 * bench.times_s(partial(bench.decode, rows, past), partial(bench.fresh, rows), read)
                added = np.median((times[:, 0] - times[:, 1]) / times[:, 2])
                named = " ".join(f"{value:8.2f}" for value in np.median(times, axis=0))
                print(f"{info.kv_format.split()[2]:4} {rows:3} rows, pasts of {past}: {named} {added:6.2f}", flush=True)


def row(name: str, times: NDArray[np.float64], num_tokens: int, num_types: int) -> str:
    """Args: times: shaped (runs, types + reads)."""
    passes = times[:, 0]
    median = float(np.median(passes))
    ratios = [times[:, i] / passes for i in range(1, num_types)] + [passes / read for read in times[:, num_types:].T]
    over = "".join(f"{float(np.median(each)):13.2f}" for each in ratios)
    return f"{name:26} {1e3 * passes.min():9.2f} {1e3 * median:10.2f} {num_tokens / median:6.0f}{over}"


if __name__ == "__main__":
    main()
