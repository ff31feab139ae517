"""Models that are loaded, swapped, reloaded, unloaded and killed at random under impatient clients, for any time.

`python -m tests.e2e.model_soak --minutes 30` prints how the server's memory, handles, threads and processes went, and
fails if they grew. Most engines follow a script (a model answers with its own name) and take neither model nor cores;
one computes with a real model on one core, `--model FILE`, and must always give the same answers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil

from stoker.models.store import resolve
from tests.e2e.conftest import Server, serving

SCRIPTED = ("alpha", "beta", "gamma")
REAL = "real"
NUM_LOADED = 2
CONFIG = """
[registry.models.{name}]
source = {source}
engine = {{ backend = {backend}, parallel = 4, ctx_size = 512, kv_tokens = 2048, cache_ram = 16, threads = 1 }}
"""
GREEDY = {"temperature": 0, "ignore_eos": True}
NUM_TOKENS = 24
"""That a real model writes."""
NUM_CLIENTS = 12
WAIT_S = 300
SETTLE_S = 600
"""Both are far more than it takes: a machine may stand still for minutes, and that is nobody's fault here."""
ROUND_S = 300
TICK_S = 0.5
PASSING = frozenset({429, 499, 503})
"""What a client may be told while models come and go; it says when to try again."""
ERRORS_IN_STREAMS = ("engine_crashed", "model_not_loaded")
MAX_GROWTH_BYTES = 24 * 2**20
MAX_NEW_HANDLES = 4
MAX_ENGINE_GROWTH_BYTES = 96 * 2**20
"""Of both engines together: a young one has not touched all of its KV pool, and of the memory behind it."""


@dataclass
class Usage:
    """Of the server's own process; and how many engines it has, and what those take."""

    rss_bytes: int
    num_handles: int
    num_threads: int
    num_engines: int
    engines_rss_bytes: int

    @classmethod
    def of(cls, pid: int) -> Usage:
        process = psutil.Process(pid)
        engines = process.children(recursive=True)
        return cls(
            process.memory_info().rss,
            process.num_fds(),
            process.num_threads(),
            len(engines),
            sum(engine.memory_info().rss for engine in engines),
        )

    def __str__(self) -> str:
        return (
            f"{self.rss_bytes / 2**20:.1f} MiB, {self.num_handles} handles, {self.num_threads} threads; "
            f"{self.num_engines} engines with {self.engines_rss_bytes / 2**20:.1f} MiB"
        )


@dataclass
class Soak:
    """One run against one server."""

    server: Server
    seed: int
    models: Sequence[str]
    answers: dict[tuple[str, str], str]
    """By model and endpoint: what a real one has answered, and always must."""
    outcomes: Counter[str] = field(default_factory=Counter[str])
    woke_at: float = 0.0
    """When this process last found that it had been stopped for a while, and so could not have been answered."""

    async def run(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        client = httpx.AsyncClient(base_url=self.server.url, timeout=None, trust_env=False)  # see _within
        async with client, asyncio.TaskGroup() as group:
            group.create_task(self._watch_clock(until))
            for number in range(NUM_CLIENTS):
                group.create_task(self._client(client, random.Random(f"{self.seed}-{number}"), until))
            group.create_task(self._trouble(client, random.Random(self.seed), until))

    async def _client(self, client: httpx.AsyncClient, rng: random.Random, until: float) -> None:
        while time.monotonic() < until:
            model = rng.choice(self.models)
            patience_s = rng.choice([0.05, 0.5, WAIT_S, WAIT_S])
            ask = rng.choice([self._stream, self._chat])
            if not await self._within(patience_s, ask(client, model)):
                assert patience_s < WAIT_S, f"{model} did not answer"
                self.outcomes["left"] += 1

    async def _within(self, limit_s: float, work: Coroutine[Any, Any, None]) -> bool:
        """Whether it ended in time; time in which this process stood still does not count."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(limit_s):
                await work
        except TimeoutError:
            await asyncio.sleep(2 * TICK_S)
            return self.woke_at > began
        return True

    async def _watch_clock(self, until: float) -> None:
        ticked_at = time.monotonic()
        while time.monotonic() < until:
            await asyncio.sleep(TICK_S)
            if time.monotonic() - ticked_at > 10 * TICK_S:
                self.woke_at = time.monotonic()
            ticked_at = time.monotonic()

    async def _stream(self, client: httpx.AsyncClient, model: str) -> None:
        body = {"model": model, "prompt": "who?", "stream": True, **_limits(model)}
        async with client.stream("POST", "/v1/completions", json=body) as response:
            text = (await response.aread()).decode()
        if self._is_refused(response):
            return
        if any(f'"{code}"' in text for code in ERRORS_IN_STREAMS):
            self.outcomes["broken off"] += 1
            return
        assert text.endswith("data: [DONE]\n\n"), text[-500:]
        chunks = [msgspec.json.decode(line.removeprefix("data: ")) for line in text.split("\n\n")[:-2]]
        assert {chunk["model"] for chunk in chunks} == {model}, text[:500]
        self._check(model, "completions", "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"]))
        self.outcomes["streamed"] += 1

    async def _chat(self, client: httpx.AsyncClient, model: str) -> None:
        keep_alive = random.choice([0, "1m", -1, None])
        options = {"num_predict": NUM_TOKENS, "temperature": 0}
        body = {"model": model, "prompt": "who?", "stream": False, "keep_alive": keep_alive, "options": options}
        response = await client.post("/api/generate", json=body)
        if not self._is_refused(response):
            self._check(model, "generate", response.json()["response"])
            self.outcomes["answered"] += 1

    def _check(self, model: str, endpoint: str, text: str) -> None:
        expected = self.answers.setdefault((model, endpoint), text) if model == REAL else model
        assert text == expected, (model, endpoint, text, expected)
        self.outcomes["computed"] += model == REAL

    def _is_refused(self, response: httpx.Response) -> bool:
        if response.status_code == 200:
            return False
        assert response.status_code in PASSING, response.text
        self.outcomes[f"refused {response.status_code}"] += 1
        return True

    async def _trouble(self, client: httpx.AsyncClient, rng: random.Random, until: float) -> None:
        while time.monotonic() < until:
            await asyncio.sleep(rng.uniform(0, 1))
            model, wait = rng.choice(self.models), rng.random() < 0.5
            match rng.randrange(4):
                case 0:
                    order = self._order(client, "load", model=model, wait=wait)
                case 1:
                    order = self._order(client, "load", model=model, reload=True, wait=wait)
                case 2:
                    order = self._order(client, "unload", model=model, wait=wait)
                case _:
                    self._kill(rng)
                    continue
            assert await self._within(WAIT_S, order), f"{model} was neither loaded nor unloaded"

    async def _order(self, client: httpx.AsyncClient, verb: str, **body: Any) -> None:
        response = await client.post(f"/models/{verb}", json=body)
        if not self._is_refused(response):
            self.outcomes[verb] += 1

    def _kill(self, rng: random.Random) -> None:
        engines = psutil.Process(self.server.pid).children()
        if engines:
            with suppress(psutil.NoSuchProcess):
                rng.choice(engines).kill()
                self.outcomes["killed"] += 1


def _limits(model: str) -> dict[str, Any]:
    return {"max_tokens": NUM_TOKENS, **GREEDY} if model == REAL else {"max_tokens": 40}


async def settled(server: Server, models: Sequence[str]) -> Usage:
    """The usage once every model has answered again and nothing goes on any more."""
    async with httpx.AsyncClient(base_url=server.url, timeout=WAIT_S, trust_env=False) as client:
        async with asyncio.timeout(SETTLE_S):
            for model in models:
                while not await _answers(client, model):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            while len(psutil.Process(server.pid).children()) != NUM_LOADED:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    return Usage.of(server.pid)


async def _answers(client: httpx.AsyncClient, model: str) -> bool:
    response = await client.post("/v1/completions", json={"model": model, "prompt": "who?", **_limits(model)})
    return response.status_code == 200 and (model == REAL or response.json()["choices"][0]["text"] == model)


def soak(
    seconds: float, *, warm_up_s: float, model: Path | None, seed: int = 0, tell: Callable[[str], None] = print
) -> tuple[Counter[str], list[Usage]]:
    """What happened, and the usage before it and after each round of it.

    Args:
        seconds: of the measured part, which has rounds of five minutes.
        model: a file that a real engine computes with, beside the scripted ones.
        warm_up_s: before it: pools and interned strings find their size.
        seed: another one, another order of events.
        tell: is given each usage when it is known.
    """
    models = [*SCRIPTED, *([REAL] if model else [])]  # the last ones are loaded when all have been asked
    answers: dict[tuple[str, str], str] = {}
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "soak.toml"
        config.write_text("".join(_config(name, model) for name in models))
        options = ["--models-max", str(NUM_LOADED), "--swap-after-s", "0.5"]
        with serving("--config", str(config), *options, log=Path(folder) / "log") as server:
            asyncio.run(Soak(server, seed, models, answers).run(warm_up_s))
            usages = [asyncio.run(settled(server, models))]
            outcomes: Counter[str] = Counter()
            num_rounds = max(1, round(seconds / ROUND_S))
            for number in range(num_rounds):
                measured = Soak(server, seed + 1 + number, models, answers)
                asyncio.run(measured.run(seconds / num_rounds))
                outcomes += measured.outcomes
                usages.append(asyncio.run(settled(server, models)))
                tell(f"round {number + 1} of {num_rounds}: {sum(outcomes.values())} events so far, {usages[-1]}")
            return outcomes, usages


def _config(name: str, model: Path | None) -> str:
    source, backend = (str(model), "auto") if name == REAL else (name, "scripted")
    return CONFIG.format(name=name, source=json.dumps(source), backend=json.dumps(backend))


def check(outcomes: Counter[str], usages: Sequence[Usage]) -> None:
    """Raises AssertionError if nothing happened, or if something grew."""
    before, after = usages[0], usages[-1]
    assert outcomes["streamed"] > 0, outcomes
    assert outcomes["answered"] > 0, outcomes
    assert outcomes["killed"] > 0, outcomes
    assert after.num_engines == before.num_engines == NUM_LOADED, (before, after)
    assert after.num_handles <= before.num_handles + MAX_NEW_HANDLES, (before, after)
    assert after.num_threads <= before.num_threads + MAX_NEW_HANDLES, (before, after)
    assert after.rss_bytes <= before.rss_bytes + MAX_GROWTH_BYTES, (before, after)
    assert after.engines_rss_bytes <= before.engines_rss_bytes + MAX_ENGINE_GROWTH_BYTES, (before, after)


def main() -> int:
    parser = argparse.ArgumentParser(description="Load, swap, reload, unload and kill models under load.")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", help="a file, or what `stoker pull` takes; empty: scripted engines only")
    parser.set_defaults(model="smollm2")
    options = parser.parse_args()
    model = resolve(options.model) if options.model else None
    warm_up_s = min(60.0, 6 * options.minutes)
    outcomes, usages = soak(60 * options.minutes, warm_up_s=warm_up_s, model=model, seed=options.seed)
    assert model is None or outcomes["computed"] > 0, outcomes
    for name, count in sorted(outcomes.items()):
        print(f"{name:15} {count}")
    print(f"before {usages[0]}\nafter  {usages[-1]}")
    check(outcomes, usages)
    return 0


if __name__ == "__main__":
    sys.exit(main())
