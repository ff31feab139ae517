"""What a second replica costs in memory: `python benchmarks/replica_memory.py MODEL` loads one engine, then replicas.

Every figure is a sum over all processes, also the one that forks replicas; what several of them share is counted once.
Linux only.
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
from stoker.engine.template import Template
from stoker.loading.locating import local_model, prepared_path

_KIB = 1024
_MIB = 2**20
_PROMPTS = 8
_MODULES = "import stoker.loading.choosing, stoker.loading.native, stoker.engine.process, stoker.backends.native"
_MAPPING = re.compile(
    r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ (?P<device>\S+) (?P<inode>\d+) *(?P<path>.*)\n(?P<facts>(?:[A-Z].*\n)+)",
    re.MULTILINE,
)


class Memory:
    """What some processes take. Pages of a file count once, however many of them, or of others here, map it."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._files: dict[tuple[str, str, str], int] = {}
        self._own = 0

    def add(self, pid: int) -> None:
        """One more of the processes that are to share."""
        here = dict[tuple[str, str, str], int]()
        for mapping in _MAPPING.finditer(Path(f"/proc/{pid}/smaps").read_text()):
            file = mapping["device"], mapping["inode"], mapping["path"]
            here[file] = here.get(file, 0) + _kib(mapping["facts"], "Rss") - _kib(mapping["facts"], "Anonymous")
        for file, kib in here.items():
            self._files[file] = max(self._files.get(file, 0), kib)
        self._own += _kib(Path(f"/proc/{pid}/smaps_rollup").read_text(), "Pss_Anon")

    def bytes_of(self) -> dict[str, int]:
        """By what it is: `own` is everything that no file has, what forks share counted once."""
        found = {"weights": 0, "programs": 0, "own": self._own * _KIB}
        for (_, _, path), kib in self._files.items():
            is_weights = path.removesuffix(" (deleted)").endswith(".stoker") or path == self._model
            found["weights" if is_weights else "programs"] += kib * _KIB
        return found


def _kib(facts: str, name: str) -> int:
    return int(re.findall(rf"^{name}: +(\d+) kB$", facts, re.MULTILINE)[0])


async def touch(engine: EngineClient, name: str) -> None:
    """Every weight is read at least once."""
    for number in range(_PROMPTS):
        sampling = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
        async for _ in engine.generate(Submit(f"{name}-{number}", f"{number} is a number, and so is", sampling)):
            pass


async def measured(config: EngineConfig, count: int, template: Template | None = None) -> dict[str, int]:
    """All processes of so many engines, by what their memory is."""
    engines = [EngineClient(config, template=template) for _ in range(count)]
    try:
        for engine in engines:
            await engine.start()
        for number, engine in enumerate(engines):
            await touch(engine, str(number))
        pids = [None if template is None else template.pid, *(engine.child_pid for engine in engines)]
        memory = Memory(config.model_path)
        for pid in pids:
            if pid is not None:
                memory.add(pid)
        return memory.bytes_of()
    finally:
        for engine in engines:
            await engine.close()
        if template is not None:
            template.close()


async def card_of(config: EngineConfig) -> ModelCard:
    engine = EngineClient(config)
    try:
        return await engine.start()
    finally:
        await engine.close()


def bare(program: str) -> int:
    """Bytes that an interpreter which has done no more than this has to itself."""
    script = f"{program}\nprint(open('/proc/self/smaps_rollup').read())"
    text = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    return _kib(text, "Pss_Anon") * _KIB


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
    card = asyncio.run(card_of(config))
    alone = asyncio.run(measured(config, 1))
    one, two = (asyncio.run(measured(config, count, Template(prepared_path(config)))) for count in (1, 2))
    added = {kind: two[kind] - one[kind] for kind in one}
    print(f"{card.name} on {card.backend}, {card.kv_tokens} tokens of KV each; MiB")
    print(f"{'':28}{'weights':>10}{'programs':>10}{'own':>10}{'all':>10}")
    print(row("one engine, no replicas", alone), row("one replica", one), row("two replicas", two), sep="\n")
    print(row("the second one adds", added))
    modules = (bare("pass") / _MIB, bare(_MODULES) / _MIB)
    print("a bare interpreter alone: {:.1f}; with the modules of an engine: {:.1f}".format(*modules))
    weights, total = one["weights"], sum(added.values())
    shares = f"{added['weights'] / weights:+.1%} in weights, {total / weights:+.1%} in all"
    print(f"of the weights' {weights / _MIB:.1f} MiB: {shares}")
    more = sum(two.values()) - sum(alone.values())
    print(f"two replicas take {more / _MIB:.1f} MiB more than one engine without: {more / weights:+.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
