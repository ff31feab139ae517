"""How much of a packed file is in huge pages, by how it came into the page cache, and what small pages cost.

    python benchmarks/file_pages.py smollm2 --rows 1 8

For each state of the page cache: the part of the file in huge pages as it is found, and after Stoker has read it. Then
decode steps of one model from two files in turn, one in huge pages and one partly in small pages: best and median time,
and the median ratio of neighboring steps. Needs a file system with huge pages, see `--folder`.
"""

from __future__ import annotations

import argparse
import mmap
import multiprocessing
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
from native_forward import Bench

from stoker.backends.native import NativeBackend, NativeOptions
from stoker.backends.native.huge_pages import (
    forget_small_pages,
    measured_share,
    prefer_huge_pages,
    read_in_huge_pages,
)
from stoker.backends.native.weights import pack_weights
from stoker.models.gguf import GGUFFile, part_paths, read_gguf
from stoker.models.store import resolve

_CHUNK_BYTES = 2 << 20
_PAST = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="a name of the catalog, or a file")
    parser.add_argument("--folder", type=Path, default=Path.home(), help="on the file system that is measured")
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--small", type=float, nargs="*", default=[1.0, 0.75, 0.3], help="parts in small pages")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=300)
    options = parser.parse_args()
    with ExitStack() as opened:
        files = [opened.enter_context(read_gguf(part)) for part in part_paths(Path(resolve(options.model)))]
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(dir=options.folder)))
        huge, small = folder / "huge", folder / "small"
        if not pack_weights(files, directory=huge, threads=options.threads):
            raise SystemExit(f"{folder} cannot hold the packed file")
        shutil.copytree(huge, small)
        (path,) = small.glob("*.stoker")
        report_states(path)
        for part in options.small:
            report_steps(files, huge, path, part, options)


def report_states(path: Path) -> None:
    states: dict[str, Callable[[Path], object]] = {
        "nothing": lambda _: None,
        "all, read": lambda path: shutil.copyfile(path, os.devnull),
        "all, written, as copies are": rewrite,
        "all, mapped by two processes at once": map_twice,
        "all, mapped, half of it dropped, mapped again": map_half_again,
        "all, mapped and used at random": lambda path: use_at_random(path, 1.0).close(),
    }
    print(f"{'in the page cache':46} {'found':>6} {'after':>6}")
    for name, bring in states.items():
        drop(path)
        bring(path)
        found = share(path)
        with path.open("rb") as file:
            read_in_huge_pages(file.fileno())
        print(f"{name:46} {found:6.0%} {share(path):6.0%}", flush=True)


def report_steps(files: Sequence[GGUFFile], huge: Path, path: Path, part: float, options: argparse.Namespace) -> None:
    """Prints a line for each number of rows. Pages that this process has mapped already stay small."""
    drop(path)
    slots = max(options.rows)
    tokens = 4 * _PAST
    sizes = partial(
        NativeOptions, context_size=tokens, kv_tokens=slots * tokens, num_slots=slots, threads=options.threads
    )
    with ExitStack() as opened:
        opened.enter_context(use_at_random(path, part))
        backends = [
            opened.enter_context(NativeBackend(files, sizes(packed_directory=each))) for each in (huge, path.parent)
        ]
        benches = [Bench(each, time.perf_counter, options.runs) for each in backends]
        print(f"{part:.0%} used at random, {share(path):.0%} in huge pages; ms in huge pages, ms in these, ratio")
        for rows in options.rows:
            for bench in benches:
                bench.fill(rows, _PAST)
            times = 1e3 * benches[0].times_s(*(partial(each.decode, rows, _PAST) for each in benches))
            named = "  ".join(
                f"{best:.2f} {middle:.2f}" for best, middle in zip(times.min(0), np.median(times, 0), strict=True)
            )
            print(f"{rows:3} rows: {named}  {np.median(times[:, 1] / times[:, 0]):.3f}", flush=True)


def drop(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        forget_small_pages(file.fileno())


def share(path: Path) -> float:
    with mapped(path) as memory:
        return measured_share(memory)


def mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    prefer_huge_pages(memory)
    return memory


def rewrite(path: Path) -> None:
    copied = shutil.copyfile(path, path.with_suffix(".copied"))
    drop(path)
    with copied.open("rb") as file:
        os.fsync(file.fileno())
    copied.replace(path)


def map_twice(path: Path) -> None:
    processes = [multiprocessing.Process(target=share, args=(path,)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def map_half_again(path: Path) -> None:
    share(path)
    size, rolled = path.stat().st_size, random.Random(3)
    with path.open("rb") as file:
        for start in range(0, size, _CHUNK_BYTES):
            if rolled.random() < 0.5:
                forget_small_pages(file.fileno(), start, _CHUNK_BYTES)


def use_at_random(path: Path, part: float) -> mmap.mmap:
    """Reads single pages of a part of the file, spread over it."""
    with path.open("rb") as file:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    memory.madvise(mmap.MADV_RANDOM)
    for chunk in range(-(-len(memory) // _CHUNK_BYTES)):
        if chunk * 0.618034 % 1 < part:
            for at in range(chunk * _CHUNK_BYTES, min((chunk + 1) * _CHUNK_BYTES, len(memory)), mmap.PAGESIZE):
                memory[at]
    return memory


if __name__ == "__main__":
    main()
