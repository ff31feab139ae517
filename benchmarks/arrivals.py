"""Requests that arrive and leave at different times, on one ONNX folder: Stoker beside onnxruntime-genai.

    python benchmarks/arrivals.py smollm2-onnx
    python benchmarks/arrivals.py smollm2-onnx --at-a-time 1

Arrivals are random (exponential gaps, one seed for both sides) and faster than either side is; prompts have 20 to 160
tokens, answers 16 to 80 (`--lengths uniform`), or lengths as people's requests have them (`--lengths skewed`:
exponential, mean 48, at most 256). Stoker takes each as it comes; genai's generator computes batches of whoever waits
when the last batch is done. Runs alternate, the median of each counts. It prints a line for each run and the ratio of
output tokens per second; the aim is 2.0 at 8 requests at a time, and 1.0 at one. Run it on a machine that does nothing
else.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from stoker import AsyncLLM, SamplingParams
from stoker.bench.prompts import Prompts
from stoker.engine.config import EngineConfig

_GENAI = Path(__file__).parent / "programs" / "onnx_genai_arrivals.py"
_PROMPT_TOKENS, _UNIFORM, _MEAN, _MOST_SKEWED = (20, 160), (16, 80), 48, 256
_LIMIT_S = 900


class Arrival(msgspec.Struct, frozen=True):
    """One request."""

    at_s: float
    prompt: str
    output_tokens: int


class Load(msgspec.Struct, frozen=True):
    """All of them, in the order of their arrival."""

    requests: list[Arrival]


def make_load(count: int, gap_s: float, lengths: str, seed: int) -> Load:
    """Requests whose texts share nothing."""
    chance, prompts, at_s = random.Random(seed), Prompts(seed, "arrivals"), 0.0
    requests: list[Arrival] = []
    for _ in range(count):
        skewed = min(_MOST_SKEWED, 1 + int(chance.expovariate(1 / _MEAN)))
        output = chance.randint(*_UNIFORM) if lengths == "uniform" else skewed
        requests.append(Arrival(at_s, prompts.text(chance.randint(*_PROMPT_TOKENS)), output))
        at_s += chance.expovariate(1 / gap_s)
    return Load(requests)


async def stoker_side(folder: str, threads: int, most: int, load: Load) -> dict[str, Any]:
    """In the child process: each request is handed over when it arrives."""
    config = EngineConfig(model=folder, threads=threads, parallel=most, ctx_size=512, kv_tokens=512 * most)
    async with AsyncLLM(config) as llm:
        await llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))
        begin_s = time.perf_counter()

        async def ask(request: Arrival) -> float:
            await asyncio.sleep(max(0.0, begin_s + request.at_s - time.perf_counter()))
            sampling = SamplingParams(temperature=0, max_tokens=request.output_tokens, ignore_eos=True)
            found = await llm.generate(request.prompt, sampling)
            assert found.usage.completion_tokens == request.output_tokens
            return time.perf_counter() - begin_s

        ended_s = await asyncio.gather(*map(ask, load.requests))
    return {"duration_s": max(ended_s), "ended_s": ended_s}


def measure(command: Sequence[str], load: Load) -> dict[str, Any]:
    """Runs one side in a process of its own."""
    done = subprocess.run(command, input=msgspec.json.encode(load), capture_output=True, timeout=_LIMIT_S, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr.decode(errors="replace")[-2000:])
    return json.loads(done.stdout.decode().strip().splitlines()[-1])


def compare(asked: argparse.Namespace) -> None:
    load = make_load(asked.requests, asked.gap, asked.lengths, asked.seed)
    num_tokens = sum(request.output_tokens for request in load.requests)
    more = (asked.folder, str(asked.threads), str(asked.at_a_time))
    commands = {
        "stoker": (sys.executable, __file__, "--side", *more),
        "onnxruntime-genai": (asked.genai_python, str(_GENAI), *more),
    }
    rates: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(asked.repetitions):
        for name, command in commands.items():
            found = measure(command, load)
            rate = num_tokens / found["duration_s"]
            waits = [ended_s - request.at_s for ended_s, request in zip(found["ended_s"], load.requests, strict=True)]
            print(f"{name:18} {rate:6.1f} tokens/s, an answer takes {sum(waits) / len(waits):.1f} s", flush=True)
            rates[name].append(rate)
    print(f"ratio {median(rates['stoker']) / median(rates['onnxruntime-genai']):.2f}")


def main() -> None:
    if sys.argv[1:2] == ["--side"]:
        folder, threads, most = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
        load = msgspec.json.decode(sys.stdin.buffer.read(), type=Load)
        print(json.dumps(asyncio.run(stoker_side(folder, threads, most, load))), flush=True)
        return
    parser = argparse.ArgumentParser(description="Stoker beside onnxruntime-genai, see the head of this file")
    parser.add_argument("folder", help="an ONNX folder, as `stoker export` writes it")
    parser.add_argument("--at-a-time", type=int, default=8)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--gap", type=float, default=0.1, help="mean seconds from one arrival to the next")
    parser.add_argument("--lengths", choices=("uniform", "skewed"), default="skewed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("--genai-python", default=sys.executable, help="a Python that has onnxruntime-genai")
    compare(parser.parse_args())


if __name__ == "__main__":
    main()
