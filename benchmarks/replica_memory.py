"""What a second replica costs in memory: `python benchmarks/replica_memory.py MODEL` loads one engine, then two.

Every figure is PSS, so what several processes share is counted once in the sum. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from stoker.core.params import SamplingParams
from stoker.engine.cards import ModelCard
from stoker.engine.client import EngineClient
from stoker.engine.config import EngineConfig
from stoker.engine.protocol import Submit
from stoker.locating import local_model

_KIB = 1024
_MIB = 2**20
_PROMPTS = 8
_MODULES = "import stoker.loading, stoker.engine.process, stoker.backends.native"
_MAPPING = re.compile(
    r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ +\d+ *(?P<path>.*)\n(?P<facts>(?:[A-Z].*\n)+)",
    re.MULTILINE,
)


def pss(pid: int, model: str) -> dict[str, int]:
    """Bytes of a process by what they are."""
    found = {"weights": 0, "programs": 0, "own": 0}
    for mapping in _MAPPING.finditer(Path(f"/proc/{pid}/smaps").read_text()):
        number = int(re.findall(r"^Pss: +(\d+) kB$", mapping["facts"], re.MULTILINE)[0]) * _KIB
        path = mapping["path"]
        is_weights = path.endswith(".stoker") or path == model
        found["weights" if is_weights else "programs" if path.startswith("/") else "own"] += number
    return found


async def touch(engine: EngineClient, name: str) -> None:
    """Every weight is read at least once."""
    for number in range(_PROMPTS):
        sampling = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
        async for _ in engine.generate(Submit(f"{name}-{number}", f"{number} is a number, and so is", sampling)):
            pass


async def measured(config: EngineConfig, count: int) -> tuple[list[dict[str, int]], ModelCard]:
    engines = [EngineClient(config) for _ in range(count)]
    try:
        for engine in engines:
            await engine.start()
        for number, engine in enumerate(engines):
            await touch(engine, str(number))
        pids = [engine.child_pid for engine in engines]
        return [pss(pid, config.model_path) for pid in pids if pid is not None], engines[0].card
    finally:
        for engine in engines:
            await engine.close()


def bare(program: str) -> int:
    """Bytes of an interpreter that has done no more than this, alone."""
    script = f"{program}\nprint(open('/proc/self/smaps_rollup').read())"
    text = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    return int(re.findall(r"^Pss: +(\d+) kB$", text, re.MULTILINE)[0]) * _KIB


def row(name: str, numbers: Mapping[str, int]) -> str:
    cells = "".join(f"{number / _MIB:10.1f}" for number in (*numbers.values(), sum(numbers.values())))
    return f"{name:28}{cells}"


def main() -> int:
    parser = argparse.ArgumentParser(description="What a second replica costs in memory.")
    parser.add_argument("model")
    parser.add_argument("--backend", default="auto", choices=("auto", "native", "llama"))
    parser.add_argument("--ctx-size", type=int, default=256)
    options = parser.parse_args()
    size = options.ctx_size
    config = local_model(
        EngineConfig(
            model=options.model,
            backend=options.backend,
            ctx_size=size,
            kv_tokens=size,
            parallel=1,
            cache_ram=0,
            threads=1,
        )
    )
    config = replace(config, model_path=str(Path(config.model_path).resolve()))
    (one,), _ = asyncio.run(measured(config, 1))
    two, card = asyncio.run(measured(config, 2))
    both = {kind: sum(engine[kind] for engine in two) for kind in one}
    added = {kind: both[kind] - one[kind] for kind in one}
    print(f"{card.name} on {card.backend}, {card.kv_tokens} tokens of KV; MiB")
    print(f"{'':28}{'weights':>10}{'programs':>10}{'own':>10}{'all':>10}")
    print(row("one engine", one), row("two engines", both), row("the second one adds", added), sep="\n")
    modules = (bare("pass") / _MIB, bare(_MODULES) / _MIB)
    print("a bare interpreter alone: {:.1f}; with the modules of an engine: {:.1f}".format(*modules))
    weights, total = one["weights"], sum(added.values())
    shares = f"{added['weights'] / weights:+.1%} in weights, {total / weights:+.1%} in all"
    print(f"of the weights' {weights / _MIB:.1f} MiB: {shares}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
