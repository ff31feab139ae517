"""A peer's library as a program that `stoker bench` can measure offline: one job from stdin, one outcome to stdout.

    {"prompts": ["...", "..."], "output_tokens": 64}
    -> {"duration_s": 1.2, "counts": [{"prompt_tokens": 20, "output_tokens": 64}, ...]}  or  {"failure": "..."}

Runs with the peer's Python, so it imports nothing of Stoker.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

Generate = Callable[[list[str], int], list[tuple[int, int]]]
"""Answers all prompts, each with so many tokens; returns tokens in and tokens out of each."""

_WARM_UP = ["Once upon a time"]


def answer_job(load: Callable[[str, int], Generate]) -> None:
    """`python some_program.py MODEL THREADS`."""
    model, threads = sys.argv[1], int(sys.argv[2])
    job = json.load(sys.stdin)
    # Engines print what they like to stdout; the outcome keeps the pipe for itself.
    outcomes = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps(_outcome(load, model, threads, job)), file=outcomes, flush=True)
    os._exit(0)  # an engine that failed may leave threads that never end


def _outcome(load: Callable[[str, int], Generate], model: str, threads: int, job: dict[str, Any]) -> dict[str, Any]:
    try:
        generate = load(model, threads)
        generate(_WARM_UP, 2)
        began = time.perf_counter()
        counts = generate(job["prompts"], job["output_tokens"])
        duration_s = time.perf_counter() - began
    except Exception as error:  # noqa: BLE001  a peer's failure is a result too
        return {"failure": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    return {"duration_s": duration_s, "counts": [{"prompt_tokens": i, "output_tokens": o} for i, o in counts]}
