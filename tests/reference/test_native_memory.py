"""What a loaded model takes: its weights once, shared with other processes, and no copy of the file besides."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.adapter_files import random_pairs, write_adapter
from tests.tiny_models import TinyModel, write_tiny_model

pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux's procfs")

SCRIPT = """
import sys
from pathlib import Path
from stoker.backends.native import NativeBackend, NativeOptions
from stoker.core.batch import Batch, Chunk
from stoker.models.gguf import read_gguf

def resident(kind):
    lines = [line for line in Path("/proc/self/smaps_rollup").read_text().splitlines() if line.startswith(kind)]
    return int(lines[0].split()[1]) * 1024

path, directory = map(Path, sys.argv[1:])
before = resident("Rss:")
options = NativeOptions(context_size=512, kv_tokens=512, num_slots=2, threads=2, packed_directory=directory)
with read_gguf(path) as gguf:
    backend = NativeBackend([gguf], options)
backend.forward(Batch(0, (Chunk(0, 0, tuple(range(100, 400)), 1),)))
maps = Path("/proc/self/maps").read_text()
print((resident("Rss:") - before) / path.stat().st_size, ".gguf" in maps, maps.count(".stoker"))
print(resident("Private_Dirty:") / path.stat().st_size)
"""


def test_weights_are_there_once(smollm2_path: Path, tmp_path: Path) -> None:
    """After packing them, and after finding them packed. KV, activations and the process itself are in the numbers."""
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(smollm2_path), str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        grown, is_file_mapped, num_packed, private = done.stdout.split()
        assert float(grown) < 1.15 + 0.5
        assert (is_file_mapped, num_packed) == ("False", "1")
        assert float(private) < 0.6, "the weights themselves belong to the page cache"
    (packed,) = tmp_path.glob("*.stoker")
    assert packed.stat().st_size <= 1.15 * smollm2_path.stat().st_size


PLAN_SCRIPT = """
import sys
from pathlib import Path
from stoker.engine.config import EngineConfig
from stoker.core.batch import Batch, Chunk
from stoker.core.stages import no_mark
from stoker.loading.choosing import load_model, measure

def allocated():
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData:")]
    return int(line.split()[1]) * 1024

path, adapter, context = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
config = EngineConfig(
    model_path=str(path), backend="native", ctx_size=context, kv_tokens=context, parallel=1, threads=1,
    lora=[str(adapter)],
)
plan = measure(config).within(1 << 40)
load_model(config, None, no_mark).backend.close()  # what is made once is there
before = allocated()
opened = load_model(config, None, no_mark)
opened.backend.load_adapter("key", adapter)
opened.backend.forward(Batch(0, (Chunk(0, 0, tuple(range(64)) * 8, 1, (("key", 1.0),)),)))
print(plan.total_bytes, allocated() - before)
"""


LOST_BYTES = 6 << 20
"""Address space, not memory: what large buffers lose to the borders of huge pages, and a heap that was larger."""


def test_the_plan_of_a_long_context_is_what_is_allocated(tmp_path: Path) -> None:
    """Of which the tables of rotations are as large as the KV."""
    model = write_tiny_model(tmp_path / "m.gguf", TinyModel(num_layers=1, num_heads=2, num_kv_heads=1, head_size=64))
    adapter = write_adapter(tmp_path / "a.gguf", random_pairs(model, 1, rank=128))
    done = subprocess.run(
        [sys.executable, "-c", PLAN_SCRIPT, str(model), str(adapter), "300000"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={**os.environ, "STOKER_CACHE_DIR": str(tmp_path / "cache")},
    )
    planned, allocated = map(int, done.stdout.split())
    assert allocated - LOST_BYTES <= planned <= 1.1 * allocated, (planned, allocated)
