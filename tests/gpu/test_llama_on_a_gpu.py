"""libllama on a GPU: detection, offload, KV to memory and back, slots, adapters, swaps, and the words about it.

Skipped where libllama has no device besides the CPU. docs/gpu.md says how a software driver becomes one.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import httpx
import numpy as np
import pytest

from stoker import LLM, SamplingParams
from stoker.backends import llama
from stoker.backends.llama import DeviceOptions, LlamaBackend, LlamaOptions
from stoker.core.batch import AdapterSet, Batch, Chunk, CopyPrefix, Truncate
from stoker.core.stages import no_mark
from stoker.engine.config import EngineConfig
from stoker.errors import ModelFileInvalid, ResourceExhausted
from stoker.loading import llama as loading
from stoker.loading.choosing import load_model, measure
from tests.adapter_files import random_pairs, write_adapter
from tests.e2e.conftest import serving
from tests.tiny_models import TinyModel, write_tiny_model
from tests.waiting import BOUND_S

BOUND_ON_A_CPU_S = 600.0
"""A software driver compiles each shader for the CPU, which takes minutes."""
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(BOUND_ON_A_CPU_S)]
PROMPT = tuple(range(3, 40))
CLOSE = 0.1
"""Of logits whose standard deviation is 2. Batches of other shapes differ by up to 0.025 on lavapipe."""


@pytest.fixture(scope="module", autouse=True)
def device() -> llama.GPU:
    if llama.gpu_name() is None:
        pytest.skip("libllama has no GPU here")
    return llama.gpus().devices[0]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("gpu") / "tiny.gguf", TinyModel(num_layers=4))


def opened(path: Path, gpu_layers: int) -> LlamaBackend:
    devices = DeviceOptions(gpu_layers=gpu_layers)
    return LlamaBackend(path, LlamaOptions(context_size=128, kv_tokens=256, num_slots=4, threads=1, devices=devices))


def last(backend: LlamaBackend, chunk: Chunk, *ops: CopyPrefix | Truncate) -> np.ndarray:
    return backend.forward(Batch(0, (chunk,), ops)).copy()[-1]


def test_devices_are_named_with_their_memory(device: llama.GPU) -> None:
    assert device.name
    assert 0 < device.free_bytes <= device.total_bytes
    assert [found.name for found in llama.gpus_by_child().devices] == [found.name for found in llama.gpus().devices]


@pytest.mark.parametrize("gpu_layers", [1, 3, -1])
def test_logits_are_those_of_the_cpu(model: Path, gpu_layers: int) -> None:
    with opened(model, 0) as backend:
        expected = last(backend, Chunk(0, 0, PROMPT, 1))
    with opened(model, gpu_layers) as backend:
        assert np.abs(last(backend, Chunk(0, 0, PROMPT, 1)) - expected).max() < CLOSE


def test_kv_leaves_the_device_and_comes_back(model: Path) -> None:
    with opened(model, -1) as backend:
        expected = last(backend, Chunk(0, 0, PROMPT, 1))
        state = bytes(backend.export_kv(0, 0, len(PROMPT) - 1))
    with opened(model, -1) as backend:
        backend.import_kv(2, 0, len(PROMPT) - 1, state)
        assert np.abs(last(backend, Chunk(2, len(PROMPT) - 1, PROMPT[-1:], 1)) - expected).max() < CLOSE


def test_slots_are_copied_and_cut_on_the_device(model: Path) -> None:
    with opened(model, -1) as backend:
        expected = last(backend, Chunk(0, 0, PROMPT, 1))
        copied = last(backend, Chunk(1, 20, PROMPT[20:], 1), CopyPrefix(0, 1, 20))
        again = last(backend, Chunk(0, 5, PROMPT[5:], 1), Truncate(0, 5))
    assert np.abs(copied - expected).max() < CLOSE
    assert np.abs(again - expected).max() < CLOSE


@pytest.fixture(scope="module")
def adapter(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapter(tmp_path_factory.mktemp("adapter") / "a.gguf", random_pairs(model, 1))


def adapted(backend: LlamaBackend, *scales: float) -> list[np.ndarray]:
    """The last logits of the prompt with the adapter at each of these scales, in turn; 0 = without it."""
    sets: list[AdapterSet] = [(("a", scale),) if scale else () for scale in scales]
    return [last(backend, Chunk(slot, 0, PROMPT, 1, adapters)) for slot, adapters in enumerate(sets)]


def test_an_adapter_computes_on_the_device(model: Path, adapter: Path) -> None:
    found: dict[int, np.ndarray] = {}
    for gpu_layers in (0, -1):
        with opened(model, gpu_layers) as backend:
            backend.load_adapter("a", adapter)
            (found[gpu_layers],) = adapted(backend, 1.0)
    with opened(model, -1) as backend:
        (plain,) = adapted(backend, 0.0)
    assert np.abs(found[-1] - found[0]).max() < CLOSE
    assert np.abs(found[-1] - plain).max() > 10 * CLOSE, "an adapter without effect would prove nothing"


@pytest.fixture
def sound_driver() -> None:
    """Skips the test on software drivers of Mesa before 25, which damage the heap of the process."""
    driver = Path(os.environ.get("VK_ICD_FILENAMES", ""))
    if driver.name.startswith("lvp"):
        version = json.loads(driver.read_text())["ICD"]["api_version"].split(".")
        if (int(version[0]), int(version[1])) < (1, 4):
            pytest.skip("software drivers of Mesa before 25 may end the process (docs/gpu.md)")


@pytest.mark.usefixtures("sound_driver")
def test_requests_with_and_without_an_adapter_take_turns_on_the_device(model: Path, adapter: Path) -> None:
    with opened(model, -1) as backend:
        backend.load_adapter("a", adapter)
        first, plain, half, again = adapted(backend, 1.0, 0.0, 0.5, 1.0)
    assert np.abs(again - first).max() < CLOSE
    assert min(np.abs(first - plain).max(), np.abs(first - half).max()) > 10 * CLOSE


@pytest.mark.usefixtures("sound_driver")
def test_models_take_turns_on_the_device(model: Path, tmp_path: Path) -> None:
    """Each is loaded twice, and answers the same both times."""
    other = write_tiny_model(tmp_path / "other.gguf", TinyModel(num_layers=4, seed=5))
    options = ["--models-max", "1", "--swap-after-s", "0", "--ctx-size", "128", "--parallel", "1"]
    body = {"prompt": "abc", "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    answers: list[str] = []
    with (
        serving(str(model), str(other), *options, log=tmp_path / "log") as server,
        httpx.Client(base_url=server.url, trust_env=False, timeout=2 * BOUND_S) as client,
    ):
        for name in ("tiny", "other") * 2:
            reply = client.post("/v1/completions", json={**body, "model": name})
            assert reply.status_code == 200, reply.text
            answers.append(reply.json()["choices"][0]["text"])
            (where,) = client.get("/props", params={"model": name}).json()["devices"]
            assert where.endswith("5 of 5 layers")
        loads = client.get("/metrics").text
    assert answers[:2] == answers[2:]
    for name in ("tiny", "other"):
        assert f'stoker_model_loads_total{{model="{name}"}} 2.0' in loads


def test_auto_takes_the_gpu_and_says_so(model: Path, device: llama.GPU) -> None:
    with LLM(str(model), ctx_size=128, parallel=1) as llm:
        assert llm.card.backend == "llama"
        (where,) = llm.card.devices
        assert where.startswith(device.name)
        assert where.endswith("5 of 5 layers")
        with LLM(str(model), ctx_size=128, parallel=1, gpu_layers=0) as on_cpu:
            assert on_cpu.card.devices == []
            greedy = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
            assert llm.generate("ab", greedy).token_ids[0] == on_cpu.generate("ab", greedy).token_ids[0]


def test_what_is_on_the_device_is_not_counted_against_memory(model: Path, device: llama.GPU) -> None:
    config = EngineConfig(model="m", model_path=str(model), ctx_size=128, parallel=1)
    on_gpu = measure(config)
    on_cpu = measure(EngineConfig(model="m", model_path=str(model), ctx_size=128, parallel=1, gpu_layers=0))
    assert on_gpu is not None
    assert on_cpu is not None
    if not device.shares_ram:
        placed = on_gpu.placed()
        assert placed.weights_bytes < on_cpu.weights_bytes
        assert placed.kv_bytes_per_token == 0 < on_cpu.kv_bytes_per_token
        assert placed.device_bytes > 0 == on_cpu.placed().device_bytes


def test_a_model_that_the_device_refuses_is_computed_by_the_cpu(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make = llama.LlamaBackend

    def refusing(path: Path, options: LlamaOptions, **others: object) -> LlamaBackend:
        if options.devices.gpu_layers:
            raise ModelFileInvalid("the driver gives no memory")
        return make(path, options, **others)  # type: ignore[arg-type]

    monkeypatch.setattr(llama, "LlamaBackend", refusing)
    config = EngineConfig(model="m", model_path=str(model), ctx_size=128, parallel=1, backend="llama")
    with caplog.at_level(logging.WARNING, logger=loading.__name__):
        load_model(config, None, no_mark).backend.close()
    (record,) = caplog.records
    assert "so the CPU is: the driver gives no memory" in record.message
    asked = EngineConfig(model="m", model_path=str(model), ctx_size=128, parallel=1, backend="llama", gpu_layers=-1)
    with pytest.raises((ModelFileInvalid, ResourceExhausted)):
        load_model(asked, None, no_mark)
