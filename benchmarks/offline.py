"""Engines side by side in process: the same prompts, all at once, batch by batch, in turn (A B A B).

    python benchmarks/offline.py smollm2 --peers ~/.cache/stoker-peers

What is compared is tokens per second over the whole call, prompts included; `prompt N` is one prompt of N words and one
token of answer.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from peers import LOOPS, Absent, find_peer

from stoker.backends.cores import usable_cores
from stoker.models.store import resolve

BATCHES = (1, 8, 16, 32)
PROMPT_WORDS = 24
PREFILL_WORDS = (500, 4000)
OUTPUT_TOKENS = 64
REPETITIONS = 3
_LOAD_S, _ANSWER_S, _END_S = 300.0, 300.0, 10.0
_WORDS = ["apple", "river", "stone", "cloud", "mountain", "table", "green", "walking", "paper"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One thing that is measured: so many prompts of so many words, with so many tokens of answer each."""

    batch: int
    words: int
    max_tokens: int

    @property
    def name(self) -> str:
        return f"prompt {self.words}" if self.max_tokens == 1 else f"batch {self.batch}"


CELLS = (
    *(Cell(batch, PROMPT_WORDS, OUTPUT_TOKENS) for batch in BATCHES),
    *(Cell(1, words, 1) for words in PREFILL_WORDS),
)


class LoopProcess:
    """An engine in its own process, see `loops/loop.py`. It ends with `close`."""

    def __init__(self, name: str, python: Path | str, script: str, model: Path, threads: int, **extra: str) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [python, LOOPS / script, model, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **extra},
        )
        self._unread = b""

    def wait_ready(self) -> str | None:
        """None, or why it cannot be measured."""
        reply = self._read(_LOAD_S)
        return None if "ready" in reply else str(reply.get("error"))

    def ask(self, prompts: list[str], max_tokens: int) -> dict[str, object]:
        """The loop's reply; `error` in it says that there is none."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"prompts": prompts, "max_tokens": max_tokens}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return {"error": f"it ended with {self._process.poll()}"}
        return self._read(_ANSWER_S)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self, timeout_s: float) -> dict[str, object]:
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        while b"\n" not in self._unread:
            if not select.select([pipe], [], [], timeout_s)[0]:
                return {"error": f"no answer within {timeout_s:g} s"}
            if not (piece := os.read(pipe, 1 << 16)):
                return {"error": f"it ended with {self._process.wait(_END_S)}"}
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)


@dataclass(slots=True)
class Column:
    """What one engine did: tokens per second for each cell and repetition, or why not."""

    name: str
    rates: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    errors: dict[str, str] = field(default_factory=dict[str, str])


def compare(engines: Sequence[LoopProcess], repetitions: int = REPETITIONS) -> list[Column]:
    """Runs every cell on every engine in turn, `repetitions` times after one warm-up; every prompt is new."""
    columns = {engine.name: Column(engine.name) for engine in engines}
    running = [engine for engine in engines if not _note_error(columns[engine.name], "load", engine.wait_ready())]
    words = random.Random(0)
    for engine in running:
        engine.ask(list(_prompts(words, Cell(8, PROMPT_WORDS, 8))), 8)
    for cell in CELLS * repetitions:
        for engine in running:
            column = columns[engine.name]
            if cell.name not in column.errors:
                _measure(engine, cell, column, list(_prompts(words, cell)))
    return list(columns.values())


def _measure(engine: LoopProcess, cell: Cell, column: Column, prompts: list[str]) -> None:
    reply = engine.ask(prompts, cell.max_tokens)
    if not _note_error(column, cell.name, reply.get("error")):
        tokens = cell.words if cell.max_tokens == 1 else reply["output_tokens"]
        assert isinstance(tokens, int)
        assert isinstance(reply["seconds"], float)
        column.rates.setdefault(cell.name, []).append(tokens / reply["seconds"])


def _note_error(column: Column, what: str, error: object) -> bool:
    if error is not None:
        column.errors[what] = str(error).splitlines()[0]
    return error is not None


def _prompts(words: random.Random, cell: Cell) -> Iterator[str]:
    for _ in range(cell.batch):
        yield " ".join(words.choices(_WORDS, k=cell.words))


def table(columns: Sequence[Column]) -> str:
    """Medians, and the first engine's ratio over each other one, as Markdown."""
    first, *others = columns
    lines = [
        "| tokens/s | " + " | ".join(column.name for column in columns) + " | "
        + " | ".join(f"{first.name} / {other.name}" for other in others) + " |",
        "| --- |" + " --- |" * (len(columns) + len(others)),
    ]  # fmt: skip
    for cell in CELLS:
        figures = [_figure(column, cell.name) for column in columns]
        ratios = [_ratio(first, other, cell.name) for other in others]
        lines.append(f"| {cell.name} | " + " | ".join([*figures, *ratios]) + " |")
    for column in columns:
        lines += [f"\n{column.name}, {what}: {error}" for what, error in column.errors.items()]
    return "\n".join(lines)


def _figure(column: Column, cell: str) -> str:
    rates = column.rates.get(cell)
    return f"{median(rates):.0f} ({min(rates):.0f}–{max(rates):.0f})" if rates else "failed"


def _ratio(first: Column, other: Column, cell: str) -> str:
    if not (first.rates.get(cell) and other.rates.get(cell)):
        return "–"
    return f"{median(a / b for a, b in zip(first.rates[cell], other.rates[cell], strict=False)):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a GGUF file or a name")
    parser.add_argument("--peers", type=Path, required=True, help="where the peers are, or are to be, installed")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    parser.add_argument("--engines", nargs="*", default=["stoker", "openvino-genai", "mistralrs"])
    arguments = parser.parse_args()
    model = resolve(arguments.model)
    engines: list[LoopProcess] = []
    try:
        for name in arguments.engines:
            engines += _start(name, model, arguments.threads, arguments.peers)
        print(table(compare(engines, arguments.repetitions)))
    finally:
        for engine in engines:
            engine.close()


def _start(name: str, model: Path, threads: int, peers: Path) -> list[LoopProcess]:
    if name.startswith("stoker"):
        backend = name.partition("-")[2] or "auto"
        return [LoopProcess(name, sys.executable, "stoker_loop.py", model, threads, STOKER_LOOP_BACKEND=backend)]
    peer = find_peer(name, peers)
    if isinstance(peer, Absent):
        print(f"{name} is absent: {peer.reason}")
        return []
    return [LoopProcess(name, peer.python, f"{name.split('-')[0]}_loop.py", model, threads)]


if __name__ == "__main__":
    main()
