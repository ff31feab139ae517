"""The pool of the native executor when its limit moves: memory comes and goes, and what is computed stays the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.backends.native import NativeBackend
from stoker.core.batch import Batch, Chunk, CopyPrefix, Truncate
from tests.reference.native_runs import open_native
from tests.tiny_models import TinyModel, write_tiny_model

MODEL = TinyModel(type="Q8_0", num_layers=4, num_heads=8, num_kv_heads=8, head_size=64, num_draft_heads=0)
MOST = 8192


def resident_bytes() -> int:
    """Memory that this process has committed."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def fill(backend: NativeBackend, slot: int, start: int, count: int) -> bytes:
    rows = b""
    for begin in range(start, start + count, 256):
        entries = tuple((slot + position) % 250 for position in range(begin, min(begin + 256, start + count)))
        rows = backend.forward(Batch(0, (Chunk(slot, begin, entries, 1),))).tobytes()
    backend.check_integrity()
    return rows


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("m") / "m.gguf", MODEL)


def open_lending(path: Path, **options: int) -> NativeBackend:
    sizes = {"context_size": 2048, "kv_tokens": 2048, "num_slots": 6, "most_kv_tokens": MOST, **options}
    return open_native(path, **sizes)


def test_memory_is_committed_as_it_is_used_and_given_back_when_it_is_not(path: Path) -> None:
    with open_lending(path) as backend:
        of_slot = 2048 * backend.info.kv_bytes_per_token
        assert of_slot > 8 << 20
        fill(backend, 0, 0, 64)
        before = resident_bytes()
        for slot in range(1, 4):
            fill(backend, slot, 0, 2048)
        held = resident_bytes()
        assert held - before > 2.5 * of_slot
        backend.forward(Batch(0, (), (Truncate(1, 0), Truncate(2, 0))))
        backend.give_back_kv()
        assert held - resident_bytes() > 1.8 * of_slot
        fill(backend, 1, 0, 2048)
        assert resident_bytes() <= held + (4 << 20)


def test_what_is_kept_has_the_same_bits_after_memory_was_given_back(path: Path) -> None:
    with open_native(path, context_size=2048, kv_tokens=2048, num_slots=1) as alone:
        fill(alone, 0, 0, 700)
        expected = fill(alone, 0, 700, 40)
        anew = open_native(path, context_size=2048, kv_tokens=2048, num_slots=4)
        with anew:
            expected_anew = fill(anew, 3, 0, 500)
    with open_lending(path) as backend:
        fill(backend, 1, 0, 900)
        fill(backend, 0, 0, 500)
        backend.forward(Batch(0, (), (CopyPrefix(0, 2, 500), Truncate(2, 333))))
        fill(backend, 0, 500, 200)
        backend.forward(Batch(0, (), (Truncate(1, 10), Truncate(2, 0))))
        backend.give_back_kv()
        assert fill(backend, 0, 700, 40) == expected
        assert fill(backend, 3, 0, 500) == expected_anew, "in pages that were given back"


def test_a_pool_without_lending_is_no_larger(path: Path) -> None:
    with open_native(path, context_size=64, kv_tokens=64, num_slots=2) as backend:
        assert backend._pages.num_pages == 64 // 32 + 4
        assert backend.info.most_kv_tokens == 0
    with open_lending(path, context_size=64, kv_tokens=64, num_slots=2, most_kv_tokens=640) as backend:
        assert backend._pages.num_pages == 640 // 32 + 4
        assert backend.info.max_sequence_tokens == 64, "no request gets longer by lending"
        backend.expect_kv(1 << 30)


def test_pages_that_do_not_exist_are_refused(path: Path) -> None:
    with open_lending(path) as backend:
        (decoder,) = backend._decoders
        for first, last in ((-1, 1), (2, 1), (0, MOST)):
            with pytest.raises(ValueError, match="no such pages"):
                decoder.give_back_pages(first, last)
