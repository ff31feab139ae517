"""Memory and start time of replicas: `python benchmarks/replica_memory.py MODEL` starts engines one after the other.

The memory is the proportional set size (PSS) of `/proc/PID/smaps_rollup`, summed over all engine processes. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import time
from pathlib import Path

import psutil
from msgspec.structs import replace

from stoker.core.params import SamplingParams
from stoker.engine.client import EngineClient
from stoker.engine.config import EngineConfig
from stoker.engine.protocol import Submit
from stoker.loading.locating import local_model

_KIB_PER_MIB = 1024
_PROMPTS = 8
_COUNTS = (1, 2, 4)


def pss_mib() -> float:
    """PSS of all child processes."""
    rollups = (
        Path(f"/proc/{child.pid}/smaps_rollup").read_text() for child in psutil.Process().children(recursive=True)
    )
    return sum(int(kib) for text in rollups for kib in re.findall(r"^Pss: +(\d+) kB$", text, re.M)) / _KIB_PER_MIB


async def touch(engine: EngineClient) -> None:
    """Answers a few prompts, so that the engine reads every weight at least once."""
    for number in range(_PROMPTS):
        sampling = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
        async for _ in engine.generate(Submit(str(number), f"{number} is a number, and so is", sampling)):
            pass


async def measure(config: EngineConfig) -> None:
    """Prints a line after each start."""
    engines = list[EngineClient]()
    try:
        for count in range(1, max(_COUNTS) + 1):
            began = time.perf_counter()
            engines.append(EngineClient(config))
            await engines[-1].start()
            start_s = time.perf_counter() - began
            await touch(engines[-1])
            memory = f"{pss_mib():9.1f}" if count in _COUNTS else f"{'':9}"
            print(f"{count:8}{start_s:12.2f}{memory}")
    finally:
        for engine in engines:
            await engine.close()


def main() -> int:
    parser = argparse.ArgumentParser(description="Memory and start time of replicas.")
    parser.add_argument("model")
    parser.add_argument("--ctx-size", type=int, default=256)
    options = parser.parse_args()
    size = options.ctx_size
    config = local_model(
        EngineConfig(model=options.model, ctx_size=size, kv_tokens=size, parallel=1, cache_ram=0, threads=1)
    )
    config = replace(config, model_path=str(Path(config.model_path).resolve()))
    print("replicas     start s  PSS MiB")
    asyncio.run(measure(config))
    return 0


if __name__ == "__main__":
    sys.exit(main())
