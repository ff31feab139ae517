"""A llama-server that computes on a GPU: it is told so, and it computes what the CPU computes.

Skipped where llama-server lists no device. docs/gpu.md says how a software driver becomes one.
"""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from stoker.core.outline import GrammarText, Outline
from stoker.engine.config import EngineConfig, SupervisionConfig
from stoker.engine.protocol import PositionLogprobs
from stoker.errors import ConfigError, ModelNotLoaded
from stoker.runtime.external.config import RuntimeConfig
from stoker.runtime.external.runtime import ExternalRuntime
from stoker.runtime.llama_server.binary import environment_of, find_binary
from stoker.runtime.llama_server.served import LlamaServed
from tests.tiny_models import TinyModel, write_tiny_model
from tests.unit.runtime.llama_server.fake import answer, ask

BOUND_S = 300.0
"""A software driver compiles each shader for the CPU, which takes minutes."""
CLOSE = 0.1
"""Of log-probabilities."""
LETTERS = Outline(grammar=GrammarText(kind="gbnf", text="root ::= [a-z]+"))
"""llama-server fails over an answer that is no text, and random weights write any bytes."""
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(2 * BOUND_S)]


@pytest.fixture(scope="module", autouse=True)
def device() -> str:
    """The first one that llama-server has."""
    try:
        path = find_binary()
    except ConfigError as error:
        pytest.skip(error.message)
    command, environment = [str(path), "--list-devices"], environment_of(path)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=BOUND_S, check=False)
    found = re.search(r"^ +(\w+): .+ MiB free\)$", done.stdout + done.stderr, re.MULTILINE)
    if found is None:
        why = "was built for another CPU" if done.returncode == -signal.SIGILL else "has no GPU here"
        pytest.skip(f"llama-server {why}")
    return found[1]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of 256 numbers: kernels of GPUs want whole blocks."""
    tiny = TinyModel(num_layers=2, hidden_size=256, feed_forward_size=256, head_size=64)
    return write_tiny_model(tmp_path_factory.mktemp("gpu") / "tiny.gguf", tiny)


@asynccontextmanager
async def started(model: Path, **settings: Any) -> AsyncGenerator[ExternalRuntime, None]:
    config = EngineConfig(model="m", model_path=str(model), ctx_size=128, parallel=2, threads=1, **settings)
    times = SupervisionConfig(heartbeat_timeout_s=BOUND_S, restart_wait_s=BOUND_S)
    further = RuntimeConfig(llama_server_start_s=BOUND_S, llama_server_args="--no-warmup --verbose")
    runtime = ExternalRuntime(LlamaServed(config, further), config, supervision=times)
    try:
        try:
            await runtime.start()
        except ModelNotLoaded as error:
            if "built for another CPU" not in error.message:
                raise
            pytest.skip(error.message)
        yield runtime
    finally:
        await runtime.close()


async def written(model: Path, **settings: Any) -> list[PositionLogprobs]:
    async with started(model, **settings) as runtime:
        outputs = await answer(runtime, ask("abc", temperature=0, max_tokens=4, logprobs=0, outline=LETTERS))
    return [position for output in outputs for position in output.logprobs or ()]


def test_all_layers_are_on_the_device_and_compute_what_the_cpu_computes(
    model: Path, device: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        on_gpu = asyncio.run(written(model, gpu_layers=-1))
    assert "offloaded 3/3 layers to GPU" in caplog.text
    assert device in caplog.text
    on_cpu = asyncio.run(written(model, gpu_layers=0))
    assert len(on_gpu) == len(on_cpu) == 4
    assert abs(on_gpu[0].chosen.logprob - on_cpu[0].chosen.logprob) < CLOSE, "later tokens may differ by rounding"


def test_a_model_drafts_for_another_on_the_device(model: Path) -> None:
    """The model drafts for itself, so drafts come out."""

    async def test() -> None:
        settings = {"draft_model": str(model), "gpu_layers": -1}
        async with started(model, **settings) as runtime:
            last = (await answer(runtime, ask("abc", temperature=0, max_tokens=24, outline=LETTERS)))[-1]
        assert last.usage.completion_tokens == 24
        assert last.timing is not None
        assert 0 < last.timing.num_accepted <= last.timing.num_drafted

    asyncio.run(test())
