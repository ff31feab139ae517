"""Stoker beside llama.cpp's server on one file, over HTTP, in turns: streams, prompts, and texts that are embedded.

    python benchmarks/synthetic.py lfm2.gguf --family lfm2
    python benchmarks/beside_llama_server.py lfm2.gguf --binary llama.cpp/build/bin/llama-server
    python benchmarks/beside_llama_server.py lfm2.gguf --binary ik_llama.cpp/build/bin/llama-server --ik
    python benchmarks/beside_llama_server.py all-MiniLM-L6-v2.gguf --binary … --embed

Both servers stay up, and the one that is not asked sleeps. Prompts are random tokens, none of them twice, and answers
are drawn at temperature 1, so that nothing is cached and nothing can be drafted. The medians of the rounds are printed,
with the ratio; above 1 Stoker is better.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import numpy as np
from peers import Present, Setting, ik_llama_server, llama_server
from peers import stoker as stoker_server

from stoker.bench.server import LaunchedServer
from stoker.models.description import vocab_size
from stoker.models.gguf import read_gguf

_CONTEXT, _STREAMS = 24_576, 16
_SHORT = 32
_REQUEST_S = 600.0
_MOST_PROMPTS = {500: 4}
"""How many prompts of a length are sent in a round; of others one."""


@dataclass(frozen=True, slots=True)
class Case:
    """Requests of one kind. The rate is what all of them have, in tokens or texts a second."""

    name: str
    count: int
    concurrency: int
    prompt: int
    output: int
    """Tokens of each answer; 0: prompts are embedded, `concurrency` in a request."""

    @property
    def amount(self) -> int:
        return self.count * (self.output if self.output > 1 else 1 if self.output == 0 else self.prompt)


def cases(streams: list[int], prompts: list[int], output: int) -> list[Case]:
    decodes = [Case(f"{n} streams", n, n, _SHORT, output) for n in streams]
    return decodes + [Case(f"prompt {n}", _MOST_PROMPTS.get(n, 1), 1, n, 1) for n in prompts]


def embeddings(lengths: list[int], counts: list[int]) -> list[Case]:
    return [
        Case(f"{count} texts of {length}", max(count, 64 if length < 256 else 16), count, length, 0)
        for length in lengths
        for count in counts
    ]


class Client:
    """Asks one server for one case after the other."""

    def __init__(self, url: str, vocab: int) -> None:
        self._url, self._random, self._vocab = url, np.random.default_rng(0), vocab

    async def seconds(self, case: Case) -> float:
        bodies = [self._body(case) for _ in range(case.count if case.output else case.count // case.concurrency)]
        limits = httpx.Limits(max_connections=_STREAMS)
        async with httpx.AsyncClient(base_url=self._url, timeout=_REQUEST_S, trust_env=False, limits=limits) as http:
            begin = time.perf_counter()
            if case.output and case.concurrency > 1:
                await asyncio.gather(*(self._send(http, body) for body in bodies))
            else:
                for body in bodies:
                    await self._send(http, body)
            return time.perf_counter() - begin

    async def _send(self, http: httpx.AsyncClient, body: dict[str, Any]) -> None:
        reply = await http.post("/v1/embeddings" if "input" in body else "/v1/completions", json=body)
        reply.raise_for_status()
        if "input" not in body:
            assert reply.json()["usage"]["completion_tokens"] == body["max_tokens"], "an answer of another length"

    def _body(self, case: Case) -> dict[str, Any]:
        if not case.output:
            return {"input": [self._tokens(case.prompt) for _ in range(case.concurrency)], "model": "any"}
        sampling = {"temperature": 1.0, "top_k": 40, "ignore_eos": True, "cache_prompt": False}
        return {"prompt": self._tokens(case.prompt), "max_tokens": case.output, **sampling}

    def _tokens(self, count: int) -> list[int]:
        return self._random.integers(200, min(self._vocab, 30_000), count).tolist()


async def measure(clients: list[Client], asked: list[Case], rounds: int) -> dict[str, list[list[float]]]:
    """Rates of each case: of each client those of all rounds; the first round is thrown away."""
    found: dict[str, list[list[float]]] = {case.name: [[] for _ in clients] for case in asked}
    for at in range(rounds + 1):
        for index, client in enumerate(clients):
            for case in asked:
                rate = case.amount / await client.seconds(case)
                if at or rounds == 0:
                    found[case.name][index].append(rate)
    return found


async def run(asked: argparse.Namespace) -> None:
    with read_gguf(asked.model) as gguf:
        vocab = vocab_size(gguf)
    context = max([_CONTEXT, *(prompt + _SHORT for prompt in asked.prompts)])
    setting = Setting(model=asked.model, threads=asked.threads, parallel=_STREAMS, context=context)
    if asked.ik:
        longest = max([_SHORT + asked.output, *(prompt + _SHORT for prompt in asked.prompts)])
        part = replace(setting, parallel=max([1, *asked.streams]), context=longest)
        theirs = ik_llama_server(part, asked.binary)
    else:
        theirs = llama_server(Present("llama-server", "", Path()), setting, asked.binary)
    if asked.embed:
        theirs = replace(theirs, command=(*theirs.command, "--embeddings", "-b", "8192", "-ub", "8192"))
    servers: list[LaunchedServer] = [stoker_server(setting), theirs]
    todo = embeddings(asked.lengths, asked.texts) if asked.embed else cases(asked.streams, asked.prompts, asked.output)
    try:
        clients = [Client((await server.start()).url, vocab) for server in servers]
        rates = await measure(clients, todo, asked.rounds)
    finally:
        for server in servers:
            await server.stop()
    print(f"{asked.model.stem}: Stoker, {theirs.name}, ratio")
    for case in todo:
        ours, other = (median(values) for values in rates[case.name])
        spread = ", ".join(f"{a / b:.2f}" for a, b in zip(*rates[case.name], strict=True))
        print(f"  {case.name:20} {ours:9.1f} {other:9.1f} {ours / other:6.2f}   ({spread})", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--binary", type=Path, required=True, help="llama-server")
    parser.add_argument("--ik", action="store_true", help="the binary is the llama-server of ik_llama.cpp")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2, help="after one that is thrown away; 0: only one")
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 8, 16])
    parser.add_argument("--prompts", type=int, nargs="*", default=[500, 4000])
    parser.add_argument("--output", type=int, default=48)
    parser.add_argument("--embed", action="store_true")
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512], help="of texts, in tokens")
    parser.add_argument("--texts", type=int, nargs="+", default=[1, 64], help="in a request")
    asyncio.run(run(parser.parse_args()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
