"""A real vLLM as the runtime. Skipped where there is none, because it is large. See `make test-vllm`."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from stoker.core.outline import GrammarText, Outline
from stoker.engine.config import EngineConfig, SupervisionConfig
from stoker.engine.question_messages import Embed, Tokenize
from stoker.errors import EngineCrashed, InvalidInput
from stoker.runtime.external.config import RuntimeConfig
from stoker.runtime.external.runtime import ExternalRuntime
from stoker.runtime.vllm.served import VLLMServed
from tests.safetensors_models import write_safetensors_folder
from tests.unit.runtime.vllm.fake import answer, ask
from tests.waiting import until

PROGRAM = os.environ.get("VLLM") or shutil.which("vllm")
BOUND_S = 900.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2 * BOUND_S),
    pytest.mark.skipif(PROGRAM is None, reason="there is no vLLM; VLLM=PATH names one"),
]


@asynccontextmanager
async def started(folder: Path, **settings: Any) -> AsyncGenerator[ExternalRuntime, None]:
    config = EngineConfig(model="tiny", model_path=str(folder), ctx_size=256, parallel=4, **settings)
    arguments = "--enforce-eager --gpu-memory-utilization 0.2"
    further = RuntimeConfig(vllm_path=PROGRAM or "", vllm_args=arguments, vllm_start_s=BOUND_S)
    times = SupervisionConfig(heartbeat_timeout_s=BOUND_S, restart_wait_s=BOUND_S)
    runtime = ExternalRuntime(VLLMServed(config, further), config, supervision=times)
    try:
        await runtime.start()
        yield runtime
    finally:
        await runtime.close()


async def text(runtime: ExternalRuntime, prompt: str = "abc", **fields: Any) -> str:
    return "".join(output.text for output in await answer(runtime, ask(prompt, **fields)))


async def greedy_answers_repeat_and_share_a_batch(runtime: ExternalRuntime) -> None:
    alone = await text(runtime, temperature=0, max_tokens=24, ignore_eos=True)
    assert len(alone) > 0
    asks = [text(runtime, request_id=str(i), temperature=0, max_tokens=24, ignore_eos=True) for i in range(4)]
    assert len(await asyncio.gather(*asks)) == 4


async def sampling_has_a_seed(runtime: ExternalRuntime) -> None:
    drawn = [await text(runtime, temperature=1.5, seed=3, max_tokens=12) for _ in range(2)]
    assert drawn[0] == drawn[1]


async def log_probabilities_are_those_of_the_tokens(runtime: ExternalRuntime) -> None:
    outputs = await answer(runtime, ask(temperature=0, max_tokens=3, ignore_eos=True, logprobs=2))
    positions = [position for output in outputs for position in output.logprobs or []]
    token_ids = [token_id for output in outputs for token_id in output.token_ids]
    assert [position.chosen.token_id for position in positions] == token_ids
    assert all(
        position.top[0].token_id == position.chosen.token_id and len(position.top) == 2 for position in positions
    )


async def constraints_hold(runtime: ExternalRuntime) -> None:
    outline = Outline(grammar=GrammarText(kind="regex", text="[ab]{3}"))
    assert set(await text(runtime, outline=outline, max_tokens=16)) <= {"a", "b"}
    outline = Outline(grammar=GrammarText(kind="choice", text='["yes", "no"]'))
    assert await text(runtime, outline=outline, max_tokens=16) in ("yes", "no")
    with pytest.raises(InvalidInput):
        await text(runtime, outline=Outline(grammar=GrammarText(kind="regex", text="[ab")), max_tokens=4)


async def a_stop_string_ends_an_answer(runtime: ExternalRuntime) -> None:
    whole = await text(runtime, temperature=0, max_tokens=16, ignore_eos=True)
    stop = whole[4:6]
    assert await text(runtime, temperature=0, max_tokens=16, ignore_eos=True, stop=[stop]) == whole[: whole.index(stop)]


async def a_prefix_is_cached_unless_it_must_not(runtime: ExternalRuntime) -> None:
    prompt = "the same beginning of a long text " * 6
    await answer(runtime, ask(prompt, max_tokens=1))
    outputs = await answer(runtime, ask(prompt, max_tokens=1))
    assert outputs[-1].usage.cached_tokens > 0
    outputs = await answer(runtime, ask(prompt, max_tokens=1, cache_prompt=False))
    assert outputs[-1].usage.cached_tokens == 0


async def a_killed_server_is_replaced(runtime: ExternalRuntime) -> None:
    assert runtime.server_pid is not None
    family = psutil.Process(runtime.server_pid).children(recursive=True)
    stream = runtime.generate(ask(max_tokens=200, ignore_eos=True))
    await anext(stream)
    await anext(stream)
    family[0].kill()
    with pytest.raises(EngineCrashed):
        async for _ in stream:
            pass
    await until(lambda: runtime.health().is_ready)
    assert not [process for process in family if process.is_running()], "its workers are gone, too"
    assert await text(runtime, max_tokens=2, ignore_eos=True)


CHECKS: list[Callable[[ExternalRuntime], Awaitable[None]]] = [
    greedy_answers_repeat_and_share_a_batch,
    sampling_has_a_seed,
    log_probabilities_are_those_of_the_tokens,
    constraints_hold,
    a_stop_string_ends_an_answer,
    a_prefix_is_cached_unless_it_must_not,
    a_killed_server_is_replaced,
]
"""In one test, because a start takes a minute."""


def test_a_real_vllm_does_what_the_fake_one_says(tmp_path: Path) -> None:
    async def test() -> None:
        async with started(write_safetensors_folder(tmp_path / "model")) as runtime:
            assert runtime.card.kv_tokens > 256
            for check in CHECKS:
                await check(runtime)
            assert runtime.server_pid is not None
            family = psutil.Process(runtime.server_pid).children(recursive=True)
        assert not [process for process in family if process.is_running()]

    asyncio.run(asyncio.wait_for(test(), 2 * BOUND_S))


def test_a_real_vllm_embeds(tmp_path: Path) -> None:
    async def test() -> None:
        async with started(write_safetensors_folder(tmp_path / "model"), pooling="mean") as runtime:
            assert runtime.card.embedding is not None
            token_ids = (await runtime.ask(Tokenize("a cat", wants_bos=True))).token_ids
            found = await runtime.ask(Embed(["a cat", "a house", token_ids]))
            rows = found.rows()
            assert rows.shape == (3, runtime.card.embedding.size)
            assert np.allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-3)
            assert float(rows[0] @ rows[2]) > 0.999 > float(rows[0] @ rows[1])
            assert found.num_tokens[0] == len(token_ids)
            raw = (await runtime.ask(Embed(["a cat"], norm=-1))).rows()
            assert abs(np.linalg.norm(raw) - 1) > 0.01, "the numbers are the model's, before they are scaled"
            with pytest.raises(InvalidInput, match="does not generate text"):
                await answer(runtime, ask("abc"))

    asyncio.run(asyncio.wait_for(test(), 2 * BOUND_S))
