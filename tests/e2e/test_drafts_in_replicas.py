"""Engines of one model that draft by a file that reads what it computes: each does, and no answer is changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from stoker.core.params import SamplingParams
from stoker.engine.cards import ModelCard
from stoker.engine.client import EngineClient
from stoker.engine.config import EngineConfig
from stoker.engine.protocol import Output, Submit
from stoker.engine.supervisor import same_sizes
from stoker.runtime.local_fleet import LocalFleet
from stoker.runtime.replica_config import ReplicaConfig
from stoker.runtime.replicas import ReplicatedRuntime
from tests.e2e.conftest import serving
from tests.e2e.test_replicas import num_ready, replicas
from tests.predictable_models import predictable, predictable_gemma, right_assistant, right_eagle
from tests.tiny_drafters import write_assistant, write_eagle
from tests.tiny_models import write_tiny_model
from tests.waiting import BOUND_S, run, until, wait_until

pytestmark = pytest.mark.slow

NUM_LAYERS = 48
"""With these, a step of the model takes several times as long as a pass of what drafts. With two, drafts do not pay."""
NUM_STREAMS = 4


def write_eagle_pair(model: Path, drafter: Path) -> None:
    write_tiny_model(model, predictable(NUM_LAYERS))
    write_eagle(drafter, right_eagle(predictable(NUM_LAYERS)))


def write_assistant_pair(model: Path, drafter: Path) -> None:
    write_tiny_model(model, predictable_gemma(NUM_LAYERS))
    write_assistant(drafter, right_assistant(predictable_gemma(NUM_LAYERS)))


@pytest.fixture(params=[write_eagle_pair, write_assistant_pair], ids=["eagle", "assistant"])
def files(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """A model, and a file that drafts for it what it says."""
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path / "cache"))
    model, drafter = tmp_path / "model.gguf", tmp_path / "drafter.gguf"
    request.param(model, drafter)
    return str(model), str(drafter)


def test_a_server_with_two_answers_as_without_drafts(tmp_path: Path, files: tuple[str, str]) -> None:
    model, drafter = files
    common = ("--ctx-size", "256", "--kv-tokens", "1024", "--threads", "1", "--parallel", "2")
    with serving(model, *common, "--max-draft", "0", log=tmp_path / "plain") as server:
        expected = said(ask_all(server.url))
    with serving(model, *common, "--replicas", "2", "--draft-model", drafter, log=tmp_path / "log") as server:
        wait_until(lambda: num_ready(server.url) == 2)

        def all_are_drafted_for() -> bool:
            """Whether drafts pay is measured in each step, so on a busy machine one round may have none."""
            replies = ask_all(server.url)
            assert said(replies) == expected, "an answer is another one"
            accepted = [reply["timings"].get("draft_n_accepted", 0) for reply in replies]
            return min(accepted) > 0 and num_accepted_of_model(server.url) > 0

        wait_until(all_are_drafted_for)
        wait_until(lambda: all(replica.get("prompt_tokens", 0) > 0 for replica in replicas(server.url)))


def ask_all(url: str) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(NUM_STREAMS) as pool:
        return list(pool.map(lambda seed: ask(url, seed), range(NUM_STREAMS)))


def ask(url: str, seed: int) -> dict[str, Any]:
    """An answer that repeats little, so that its text offers few drafts."""
    sampling = {"temperature": 3, "top_k": 200, "seed": seed, "n_predict": 150, "ignore_eos": True}
    body = {"prompt": f"{seed}: abc", **sampling, "return_tokens": True, "n_probs": 2}
    reply = httpx.post(f"{url}/completion", json=body, trust_env=False, timeout=BOUND_S)
    assert reply.status_code == 200, reply.text
    return reply.json()


def said(replies: list[dict[str, Any]]) -> str:
    """Tokens and probabilities, to the last digit. One string: pytest takes minutes to compare so many parts."""
    return repr([(reply["tokens"], reply["completion_probabilities"]) for reply in replies])


def num_accepted_of_model(url: str) -> float:
    """Tokens of a model's drafts that came out, of both engines."""
    lines = httpx.get(f"{url}/metrics", trust_env=False, timeout=BOUND_S).text.splitlines()
    its = [line for line in lines if line.startswith("stoker_accepted_drafts_by_source_tokens_total{")]
    return sum(float(line.rpartition(" ")[2]) for line in its if 'source="model"' in line)


def test_each_of_two_engines_drafts(files: tuple[str, str]) -> None:
    model, drafter = files
    sizes = EngineConfig(model_path=model, ctx_size=256, kv_tokens=1024, threads=1, parallel=2)

    async def test() -> None:
        async with started(sizes, max_draft=0) as plain:
            expected = await answers(plain)
        async with started(sizes, draft_model=drafter) as drafting:
            while min(accepted(drafting)) == 0:
                assert await answers(drafting) == expected

    run(test())


@asynccontextmanager
async def started(sizes: EngineConfig, **fields: Any) -> AsyncGenerator[ReplicatedRuntime]:
    """Two engines, as processes."""
    config = msgspec.structs.replace(sizes, **fields)

    def make(_: int, first: ModelCard | None) -> EngineClient:
        return EngineClient(config if first is None else same_sizes(config, first), repeats=False)

    runtime = ReplicatedRuntime(LocalFleet(make, ReplicaConfig(replicas=2)))
    try:
        await runtime.start()
        await until(lambda: all(replica.is_ready for replica in runtime.health().replicas.values()))
        yield runtime
    finally:
        await runtime.close()


async def answers(runtime: ReplicatedRuntime) -> list[list[int]]:
    return await asyncio.gather(*(answer(runtime, seed) for seed in range(NUM_STREAMS)))


async def answer(runtime: ReplicatedRuntime, seed: int) -> list[int]:
    sampling = SamplingParams(temperature=3, top_k=200, seed=seed, max_tokens=150, ignore_eos=True)
    async with aclosing(runtime.generate(Submit(f"{seed}", f"{seed}: abc", sampling))) as events:
        return [token_id async for event in events if isinstance(event, Output) for token_id in event.token_ids]


def accepted(runtime: ReplicatedRuntime) -> list[int]:
    """Tokens of the file's drafts that came out, of each engine."""
    found = [replica.heartbeat for replica in runtime.health().replicas.values()]
    return [0 if beat is None else beat.accepted_model_tokens for beat in found]
