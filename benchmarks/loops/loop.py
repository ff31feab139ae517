"""One engine in its own process, asked over pipes: a line of JSON in, a line of JSON out. Imports nothing of Stoker.

    {"prompts": ["...", "..."], "max_tokens": 64}  ->  {"seconds": 1.2, "output_tokens": 128}  or  {"error": "..."}

All prompts of a line are given to the engine at once. The first line out is `{"ready": true}`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

Answer = Callable[[list[str], int], int]
"""Answers all prompts, each with exactly so many tokens, and says how many tokens came out in all."""


def serve_loop(load: Callable[[str, int], Answer]) -> None:
    """`python some_loop.py MODEL THREADS`, until stdin ends."""
    model, threads = sys.argv[1], int(sys.argv[2])
    # Engines print what they like to stdout; the replies keep the pipe for themselves.
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    answer = load(model, threads)
    print(json.dumps({"ready": True}), file=replies)
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(_timed(answer, order["prompts"], order["max_tokens"])), file=replies)


def _timed(answer: Answer, prompts: list[str], max_tokens: int) -> dict[str, Any]:
    began = time.perf_counter()
    try:
        output_tokens = answer(prompts, max_tokens)
    except Exception as error:  # noqa: BLE001  a peer's failure is a result too
        return {"error": f"{type(error).__name__}: {error}"}
    return {"seconds": time.perf_counter() - began, "output_tokens": output_tokens}
