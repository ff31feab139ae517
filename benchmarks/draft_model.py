"""What a draft model brings: tokens a second with and without it, in turn, for drafts that are right as often as asked.

    python benchmarks/synthetic.py /tmp/4b.gguf --num-layers 36 --hidden 2560 --feed-forward 9728
    python benchmarks/synthetic.py /tmp/draft.gguf --num-layers 28 --hidden 1024 --feed-forward 3072 --num-heads 16
    python benchmarks/draft_model.py /tmp/4b.gguf /tmp/draft.gguf --acceptance 0 0.5 0.7 0.9 --streams 1 4 8
    python benchmarks/synthetic.py /tmp/eagle.gguf --drafts-for /tmp/4b.gguf
    python benchmarks/draft_model.py /tmp/4b.gguf /tmp/eagle.gguf
    python benchmarks/synthetic.py /tmp/mtp.gguf --family qwen35-0.8b-mtp
    python benchmarks/draft_model.py /tmp/mtp.gguf

The draft model is a model of its own, or a file that drafts from what the other one computes (EAGLE-3, Gemma 4's
assistant); without one, the head that the model's file has drafts. All may be noise. Each pass is really computed; then
what it says is replaced: by the token that the other model is going to write, with the chance that is asked for, and
else by a wrong one. All answers are compared.

Both engines answer at the same time, and take their steps in turn, so that both have the same minutes of the machine:
the one that has written less takes the next one. Each is charged for its own steps. On a machine that has other things
to do, `--cpu-time` counts the seconds of one thread, for the figures and for the engine's own decisions.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np

from stoker.backends.base import Backend, DraftHeadPort, Guess, Logits, most_likely
from stoker.backends.native.extension import RowSampler
from stoker.core.batch import Batch, Entry
from stoker.core.model_info import ModelInfo
from stoker.core.params import SamplingParams
from stoker.core.scheduler import SchedulerConfig
from stoker.core.stages import no_mark
from stoker.engine.config import EngineConfig
from stoker.engine.engine import Engine
from stoker.engine.protocol import Output, Submit
from stoker.loading.choosing import load_model

Clock: TypeAlias = Callable[[], float]
_MAX_DRAFT = 15


class Planted:
    """A draft model of which each guess comes out with a set chance. Satisfies `Backend`.

    Args:
        backend: computes.
        seed: of the dice.
    """

    def __init__(self, backend: Backend, seed: int = 1) -> None:
        self._backend = backend
        self._random = random.Random(seed)
        self._first_entries: dict[int, int] = {}
        self.acceptance = 1.0
        self.sequences: dict[int, list[int]] = {}
        """Prompts with their answers, by their first entry."""

    @property
    def info(self) -> ModelInfo:
        return self._backend.info

    def forward(self, batch: Batch) -> Logits:
        """As the model's own, but for the largest logit of each row."""
        logits = self._backend.forward(batch)
        row = 0
        for chunk in batch.chunks:
            if chunk.start == 0:
                self._first_entries[chunk.slot] = chunk.entries[0]
            if chunk.num_logits:
                sequence = self.sequences.get(self._first_entries[chunk.slot], [])
                right = sequence[chunk.end] if chunk.end < len(sequence) else 0
                is_right = self._random.random() < self.acceptance
                logits[row, right if is_right else (right + 1) % self.info.vocab_size] = float("inf")
                row += chunk.num_logits
        return logits

    def close(self) -> None:
        self._backend.close()


class PlantedHead:
    """The same for what drafts from the states of the other model. Satisfies `DraftHeadPort`.

    Args:
        port: computes.
        seed: of the dice.
    """

    def __init__(self, port: DraftHeadPort, seed: int = 1) -> None:
        self._port = port
        self._random = random.Random(seed)
        self.acceptance = 1.0
        self.sequences: dict[int, list[int]] = {}
        """Prompts with their answers, by their first entry."""

    def can_draft(self, slot: int) -> bool:
        return self._port.can_draft(slot)

    def num_waiting(self, slot: int) -> int:
        return self._port.num_waiting(slot)

    def draft(self, wanted: Sequence[tuple[int, int, Entry, int]], guess: Guess = most_likely) -> list[list[Entry]]:
        """As the port's own, but for the largest logit of each row."""
        ends = {slot: (self._sequence(length, entry), length + 1) for slot, length, entry, _ in wanted}

        def planted(logits: Logits, places: Sequence[tuple[int, int]]) -> list[Entry]:
            chosen = [self._said(*ends[slot], ahead, logits.shape[1]) for slot, ahead in places]
            rows = np.arange(len(chosen))
            before = logits[rows, chosen]
            logits[rows, chosen] = np.inf
            found = guess(logits, places)
            logits[rows, chosen] = before
            return found

        return self._port.draft(wanted, planted)

    def _sequence(self, length: int, entry: Entry) -> list[int]:
        """That which goes on with this entry at this place."""
        for sequence in self.sequences.values():
            if length < len(sequence) and sequence[length] == entry:
                return sequence
        return []

    def _said(self, sequence: list[int], end: int, ahead: int, vocab_size: int) -> int:
        right = sequence[end + ahead] if end + ahead < len(sequence) else 0
        return right if self._random.random() < self.acceptance else (right + 1) % vocab_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("draft", nargs="?", default="", help="a file that drafts")
    parser.add_argument("--acceptance", type=float, nargs="+", default=[0.0, 0.5, 0.7, 0.9])
    parser.add_argument("--streams", type=int, nargs="+", default=[1])
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--cpu-time", action="store_true", help="of one thread, instead of the time that passes")
    args = parser.parse_args()
    clock = time.thread_time if args.cpu_time else time.perf_counter
    config = EngineConfig(
        model_path=str(args.model),
        ctx_size=1024,
        parallel=max(args.streams),
        kv_tokens=1024 * max(args.streams),
        threads=1 if args.cpu_time else args.threads,
        cache_ram=0,
        max_draft=0,
    )
    plain, _ = engine_of(config, clock)
    drafting, planted = engine_of(msgspec.structs.replace(config, draft_model=args.draft, max_draft=None), clock)
    assert planted is not None
    plain.warm_up()
    drafting.warm_up()
    print("streams, acceptance: tok/s without, with, ratio (median round; least, most, first), drafted, accepted")
    for num_streams in args.streams:
        planted.sequences = {
            prompt[0]: prompt + answer for prompt, answer in answers(plain, num_streams, args.tokens, clock)
        }
        for acceptance in args.acceptance:
            planted.acceptance = acceptance
            compare(plain, drafting, num_streams, args.tokens, args.rounds, clock, f"{num_streams}, {acceptance:g}")
    plain.close()
    drafting.close()


def engine_of(config: EngineConfig, clock: Clock) -> tuple[Engine, Planted | PlantedHead | None]:
    """An engine, and what drafts for it, if there is something, which is told what to say."""
    loaded = load_model(config, None, no_mark)
    model = None if loaded.draft_backend is None else Planted(loaded.draft_backend)
    head = None if loaded.head_port is None else PlantedHead(loaded.head_port)
    planted = model or head
    scheduling = SchedulerConfig(max_running=config.parallel, max_draft=0 if planted is None else _MAX_DRAFT)
    loaded = replace(loaded, draft_backend=model, head_port=head)
    return Engine(loaded, scheduling, row_kernels=RowSampler(), clock=clock), planted


def compare(
    plain: Engine, drafting: Engine, num_streams: int, num_tokens: int, rounds: int, clock: Clock, label: str
) -> None:
    """Prints the figures of one case. The first round, in which much is learned, counts as any."""
    before = drafting.stats()
    speeds: list[tuple[float, float]] = []
    for _ in range(rounds):
        runs = [Run(engine, num_streams, num_tokens, clock) for engine in (plain, drafting)]
        finish(runs)
        assert runs[0].found == runs[1].found, "drafts have changed an answer"
        speeds.append((runs[0].speed, runs[1].speed))
    after = drafting.stats()
    ratios = [with_them / without for without, with_them in speeds]
    without, with_them = (statistics.median(column) for column in zip(*speeds, strict=True))
    drafted = after.drafted_tokens - before.drafted_tokens
    accepted = after.accepted_tokens - before.accepted_tokens
    spread = f"{statistics.median(ratios):.3f} ({min(ratios):.3f}, {max(ratios):.3f}; first {ratios[0]:.3f})"
    print(f"{label}: {without:.1f}, {with_them:.1f}, {spread}, {drafted}, {accepted}", flush=True)


class Run:
    """Answers of one engine to some requests.

    Noise at a high temperature repeats nothing, so that the text itself offers no drafts.
    """

    def __init__(self, engine: Engine, num_streams: int, num_tokens: int, clock: Clock) -> None:
        self._engine = engine
        self._num_streams = num_streams
        self._clock = clock
        self._seconds, self._num_timed = 0.0, 0
        """Of steps after the one in which the last stream has begun."""
        self.found: dict[str, list[int]] = {}
        for index in range(num_streams):
            sampling = SamplingParams(temperature=1.0, seed=index, max_tokens=num_tokens, ignore_eos=True)
            engine.add(engine.admit(Submit(f"{index}", prompt_of(index), sampling, cache_prompt=False)))

    @property
    def has_work(self) -> bool:
        return self._engine.has_work

    @property
    def num_written(self) -> int:
        return sum(map(len, self.found.values()))

    @property
    def speed(self) -> float:
        """Tokens a second."""
        return self._num_timed / self._seconds

    def step(self) -> None:
        has_begun, num_before = len(self.found) == self._num_streams, self.num_written
        began = self._clock()
        events = self._engine.step()
        took = self._clock() - began
        for event in events:
            assert isinstance(event, Output), event
            self.found.setdefault(event.request_id, []).extend(event.token_ids)
        if has_begun:
            self._seconds += took
            self._num_timed += self.num_written - num_before


def finish(runs: Sequence[Run]) -> None:
    """All answers of all of them, in turn."""
    while waiting := [run for run in runs if run.has_work]:
        min(waiting, key=lambda run: run.num_written).step()


def answers(engine: Engine, num_streams: int, num_tokens: int, clock: Clock) -> list[tuple[list[int], list[int]]]:
    """Prompts with what the model writes behind them."""
    run = Run(engine, num_streams, num_tokens, clock)
    finish([run])
    return [(prompt_of(index), run.found[f"{index}"]) for index in range(num_streams)]


def prompt_of(index: int) -> list[int]:
    """Begins as no other."""
    return [100 + index, *random.Random(index).choices(range(1000, 9000), k=63)]


if __name__ == "__main__":
    main()
