"""How many conversations the same memory holds with windows and without, on shapes of Gemma 3, gpt-oss and Llama 4."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.backends.native import NativeBackend
from stoker.core.scheduler import Scheduler, SchedulerConfig
from tests.harness import make_request
from tests.properties.test_native_invariances import update
from tests.reference.native_runs import open_native
from tests.tiny_models import TinyModel, write_tiny_model

LENGTH = 600
SHAPES = {
    "gemma3": (TinyModel(architecture="gemma3", num_layers=12, keys={"attention.sliding_window": 32}), 2.0),
    "gpt-oss": (
        TinyModel(architecture="gpt-oss", num_layers=4, num_experts=4, keys={"attention.sliding_window": 32}),
        1.3,
    ),
    "llama4": (
        TinyModel(
            architecture="llama4",
            num_layers=4,
            num_experts=4,
            shared_size=32,
            keys={"attention.sliding_window": 32},
        ),
        1.6,
    ),
}
"""Of each shape how many times as many conversations it must hold."""


def num_kept(backend: NativeBackend) -> int:
    """Of conversations that come one after the other, how many can be gone on with when all have come."""
    scheduler = Scheduler(backend.info, SchedulerConfig(max_running=1))
    prompts = [[*range(number, number + 100), *[number] * (LENGTH - 100)] for number in range(25)]
    for index, prompt in enumerate(prompts):
        scheduler.add(make_request(f"r{index}", prompt, 1))
        while scheduler.has_work:
            batch = scheduler.schedule()
            assert batch is not None
            list(update(scheduler, batch, backend.forward(batch)))
    reuses = [scheduler.kv.find_reuse([*prompt, 7], LENGTH, key) for prompt in prompts for key in keys(scheduler)]
    return sum(reuse.length == LENGTH for reuse in reuses)


def keys(scheduler: Scheduler) -> list[object]:
    return list({scheduler.kv.retained.key(slot): None for slot in scheduler.kv.retained})


@pytest.mark.parametrize("name", list(SHAPES))
def test_the_same_memory_holds_more_conversations(name: str, tmp_path: Path) -> None:
    model, least = SHAPES[name]
    path = write_tiny_model(tmp_path / "m.gguf", model)
    sizes = {"context_size": 700, "num_slots": 80, "kv_type": "f16"}
    with open_native(path, kv_tokens=5000, **sizes) as whole:
        num_bytes = 5000 * whole.info.kv_bytes_per_token
        num_whole = num_kept(whole)
    with open_native(path, kv_tokens=700, window_tokens=700, **sizes) as small:
        assert small.info.windows is not None
        rest, of_windows, reach = (
            small.info.kv_bytes_per_token,
            small.info.windows.bytes_per_cell,
            small.info.windows.reach,
        )
    running = reach + 512
    kv_tokens = (num_bytes - running * of_windows) * 4 // (4 * rest + of_windows)
    window_tokens = running + kv_tokens // 4
    assert kv_tokens * rest + window_tokens * of_windows <= num_bytes
    with open_native(path, kv_tokens=kv_tokens, window_tokens=window_tokens, **sizes) as windowed:
        num_windowed = num_kept(windowed)
    assert num_whole == 5000 // LENGTH
    assert num_windowed >= least * num_whole
