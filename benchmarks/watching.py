"""What it costs to watch an engine: 8 streams, watched and unwatched steps in turns.

.venv/bin/python benchmarks/watching.py [MODEL] [--hz 10] [--steps 400]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import median

from stoker.assembly import build_engine
from stoker.core.params import SamplingParams
from stoker.engine.config import EngineConfig
from stoker.engine.engine import Engine
from stoker.engine.protocol import Submit
from stoker.engine.question_messages import Look

STREAMS = 8
PROMPT = "You are a helpful assistant who answers briefly. "


def main() -> None:
    parser = argparse.ArgumentParser(description="what it costs to watch an engine")
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--hz", type=float, default=10.0)
    parser.add_argument("--steps", type=int, default=400, help="of each kind")
    args = parser.parse_args()
    engine, _ = build_engine(EngineConfig(model=args.model, parallel=STREAMS, max_draft=0))
    engine.warm_up()
    for number in range(STREAMS):
        sampling = SamplingParams(ignore_eos=True, seed=number)
        engine.add(engine.admit(Submit(f"r{number}", f"{PROMPT}Question {number}?", sampling)))
    for _ in range(40):
        engine.step()
    steps: dict[bool, list[float]] = {False: [], True: []}
    looks: list[float] = []
    for step in range(2 * args.steps):
        is_watched = step % 4 in (1, 2)  # so that what alternates by itself falls on both kinds
        if is_watched:
            looks.append(seconds(partial(look, engine)))
        steps[is_watched].append(seconds(engine.step))
        engine.stop_watching()
    engine.close()
    unwatched, watched, a_look = median(steps[False]), median(steps[True]), median(looks)
    recording = watched / unwatched - 1
    print(f"{STREAMS} streams of {args.model}, {args.steps} steps watched and {args.steps} not, in turns; medians")
    print(f"a step: {1e3 * unwatched:.3f} ms unwatched, {1e3 * watched:.3f} ms watched: {recording:+.2%}")
    print(f"a look: {1e6 * a_look:.0f} us; {args.hz:g} in a second take {a_look * args.hz:.2%} of it")


def look(engine: Engine) -> None:
    engine.answer(Look())


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
