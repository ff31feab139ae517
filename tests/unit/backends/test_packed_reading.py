"""Pages of a mapped file are there before they are used."""

from __future__ import annotations

import sys
from functools import partial
from mmap import ACCESS_READ, PAGESIZE, mmap
from pathlib import Path

import numpy as np
import pytest

from stoker.backends.native import packed_threads
from stoker.backends.native.packed_threads import Reading, touch_pages
from tests.tiny_models import TinyModel, write_tiny_model
from tests.unit.backends.test_native_weights import SHAPE, load
from tests.waiting import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says which pages are there")
_NUM_BYTES = 8 << 20


def mapped(tmp_path: Path) -> mmap:
    path = tmp_path / "packed"
    path.write_bytes(bytes(_NUM_BYTES))
    with path.open("rb") as file:
        return mmap(file.fileno(), _NUM_BYTES, access=ACCESS_READ)


def bytes_there(memory: mmap) -> int:
    """By what the kernel says about the mapping that begins where `memory` does."""
    address = np.frombuffer(memory, dtype=np.uint8).__array_interface__["data"][0]
    _, found, rest = ("\n" + Path("/proc/self/smaps").read_text()).partition(f"\n{address:x}-")
    assert found
    (rss,) = (line.split()[1] for line in rest.splitlines()[:8] if line.startswith("Rss:"))
    return int(rss) << 10


def test_all_pages_are_read(tmp_path: Path) -> None:
    memory = mapped(tmp_path)
    reading = Reading(memory)
    wait_for(partial(bytes_there, memory), _NUM_BYTES.__eq__)
    reading.close()
    reading.close()


def test_reading_ends_with_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_threads, "_PIECE_BYTES", PAGESIZE)
    memory = mapped(tmp_path)
    asked = list[bool]()

    def is_over() -> bool:
        asked.append(True)
        return len(asked) > 2

    touch_pages(memory, is_over)
    assert bytes_there(memory) < _NUM_BYTES


def test_weights_of_a_shared_file_are_read_ahead(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel(type="Q4_K", **SHAPE))
    for _ in range(2):  # by the process that packed, and by another one
        weights = load(path, tmp_path / "packed")
        assert weights.is_shared
        memory = weights.memory
        wait_for(partial(bytes_there, memory), len(memory).__le__)
        weights.close()
