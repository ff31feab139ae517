"""What a loaded model takes: its weights once, shared with other processes, and no copy of the file besides."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
