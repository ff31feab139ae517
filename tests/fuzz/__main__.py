"""Feeds damaged and lying files to everything that reads them: `python -m tests.fuzz SECONDS [SEED] [KIND ...]`.

Each case must end with a model that works or with one of our own errors, within seconds and within bounded memory.
Cases run in a process of their own, so that one that crashes, hangs or eats the memory is named by its seed and kept:

    kind          what is damaged
    header        numbers and names of a model's file, and how long it is
    weights       its tensors' bytes: scales that are infinite or no number, half a file of ones
    rope          what it says about rotations, with tensors of the wrong length and type
    family        experts, states, lists of layers and latent keys that are not what the tensors are; and damage
    encoder       likewise, of models that embed
    drafter       likewise, of files that draft for another model
    lora          an adapter, header and values
    vocabulary    a tokenizer's lists: merges of nothing, too few scores, the same token twice, types that are none
    template      a chat template that loops, nests, or makes huge texts

Beside these random ones stand the tests of each reader, and `tests/unit/models/test_gguf_fuzz.py`.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from stoker.errors import ModelError, StokerError, TemplateError
from tests.fuzz.drafters import drafter_case
from tests.fuzz.families import encoder_case, family_case
from tests.fuzz.model_files import header_case, lora_case, rope_case, weights_case
from tests.fuzz.templates import template_case
from tests.fuzz.vocabularies import vocabulary_case

MAX_CASE_S = 20
"""Of CPU time: a template may take 6, other things a small part of that."""
MAX_GROWTH_BYTES = 1 << 30
MAX_ADDRESS_BYTES = 16 << 30

Case: TypeAlias = Callable[[random.Random, Path], str]
"""Does one; returns in a word how it ended."""

CASES: dict[str, Case] = {
    "header": header_case,
    "weights": weights_case,
    "rope": rope_case,
    "family": family_case,
    "encoder": encoder_case,
    "drafter": drafter_case,
    "lora": lora_case,
    "vocabulary": vocabulary_case,
    "template": template_case,
}
_EXPECTED: dict[str, tuple[type[Exception], ...]] = {
    "template": (TemplateError,),
    "vocabulary": (ModelError,),
}


def run_one(kind: str, seed: str, folder: Path) -> str:
    """How it ended.

    Raises:
        Exception: what is wrong with it.
    """
    try:
        return CASES[kind](random.Random(seed), folder)
    except _EXPECTED.get(kind, (StokerError,)) as error:
        return type(error).__name__ if str(error).strip() else "an error that says nothing"


def run_many(kinds: list[str], seed: int, first: int, seconds: float, folder: Path) -> None:
    """Cases in this process until the time is up. The last line of the log names the one at work."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESS_BYTES, MAX_ADDRESS_BYTES))
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    deadline, ends, slowest, peak = time.monotonic() + seconds, Counter[str](), Counter[str](), 0
    number = first
    with (folder / "log").open("a") as out:
        while time.monotonic() < deadline:
            kind, name = kinds[number % len(kinds)], f"{seed}-{number}"
            print("begin", kind, name, number, file=out, flush=True)
            spent = int(time.process_time())
            resource.setrlimit(resource.RLIMIT_CPU, (spent + MAX_CASE_S + 1, resource.RLIM_INFINITY))
            before = time.process_time()
            end = run_one(kind, name, folder)
            ends[f"{kind}: {end}"] += 1
            took = round((time.process_time() - before) * 1000)
            if took > slowest[kind]:
                slowest[kind] = took
                print("slowest", name, kind, took, "ms", file=out, flush=True)
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            assert peak == 0 or grown - peak < MAX_GROWTH_BYTES, f"{grown - peak} bytes of memory"
            peak = grown
            number += 1
        print("done", number - first, "cases;", dict(sorted(ends.items())), file=out)
        print("slowest, ms of CPU time:", dict(slowest), "largest memory:", peak >> 20, "MiB", file=out)


def main(seconds: float, seed: int, kinds: list[str]) -> int:
    """Starts a new process after each case that failed."""
    print(f"seed {seed}, kinds {' '.join(kinds)}", flush=True)
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    end, first, num_failed = time.monotonic() + seconds, 0, 0
    with tempfile.TemporaryDirectory(prefix="stoker-fuzz-") as folder:
        while (left := end - time.monotonic()) > 0:
            command = [sys.executable, "-m", "tests.fuzz", _CHILD, folder, str(seed), str(first), str(left), *kinds]
            status = subprocess.run(command, env=environment, check=False).returncode
            lines = (Path(folder) / "log").read_text().splitlines()
            if status == 0:
                print(*(line for line in lines if not line.startswith("begin")), sep="\n")
                break
            _, kind, case, number = lines[-1].split()
            print(f"FAILED with {status}; again: python -m tests.fuzz 0 {case} {kind}", flush=True)
            num_failed, first = num_failed + 1, int(number) + 1
    return 1 if num_failed else 0


_CHILD = "--child"


def _run(arguments: list[str]) -> int:
    if arguments[:1] == [_CHILD]:
        folder, seed, first, seconds = arguments[1:5]
        run_many(arguments[5:], int(seed), int(first), float(seconds), Path(folder))
        return 0
    if not arguments or not set(arguments[2:]) <= set(CASES):
        print(f"usage: python -m tests.fuzz SECONDS [SEED] [KIND ...]    KIND: some of {' '.join(CASES)}")
        return 2
    which = arguments[1] if len(arguments) > 1 else "1"
    if "-" not in which:
        return main(float(arguments[0]), int(which), arguments[2:] or list(CASES))
    with tempfile.TemporaryDirectory() as folder:  # one case again
        print(run_one(arguments[2], which, Path(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(_run(sys.argv[1:]))
