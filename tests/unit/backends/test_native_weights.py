"""Packed weights hold what the file holds, whoever packed them and wherever they lie."""

from __future__ import annotations

import logging
import mmap
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock
from gguf import GGUFReader
from numpy.typing import NDArray

from stoker import _native
from stoker.backends.native.architectures import describe_decoder
from stoker.backends.native.file import ModelParts
from stoker.backends.native.huge_pages import lies_in_small_pages
from stoker.backends.native.layer_parts import Linear
from stoker.backends.native.layout import Layout, plan_layout
from stoker.backends.native.packed_file import PackedStore, fingerprint
from stoker.backends.native.packed_threads import Writing
from stoker.backends.native.weights import PackProgress, Weights, load_weights
from stoker.errors import ModelFileInvalid, ModelUnsupported
from stoker.models.gguf import read_gguf
from tests.small_types import dequantized
from tests.tiny_models import ALL_TYPES, GRID_TYPES, TinyModel, write_tiny_model
from tests.waiting import BOUND_S

PLENTY = 1 << 30
SHAPE: dict[str, Any] = {"hidden_size": 256, "feed_forward_size": 256, "num_heads": 4, "head_size": 64}


@contextmanager
def opened(path: Path) -> Generator[tuple[ModelParts, Layout]]:
    with read_gguf(path) as gguf:
        parts = ModelParts([gguf])
        yield parts, plan_layout(describe_decoder(parts, 100), parts)


def load(path: Path, directory: Path | None = None, threads: int = 2, progress: PackProgress | None = None) -> Weights:
    with opened(path) as (parts, layout):
        return load_weights(parts, layout, directory=directory, max_bytes=PLENTY, threads=threads, progress=progress)


def unpacked(weights: Weights, linear: Linear) -> NDArray[np.float32]:
    place = weights.layout.matrices[linear]
    packed = memoryview(weights.memory)[place.offset : place.offset + place.num_bytes]
    found = np.empty((place.rows, place.columns), dtype=np.float32)
    for row in range(place.rows):
        _native.unpack_row(place.type, packed, place.rows, place.columns, row, found[row])
    return found


def check(path: Path, weights: Weights) -> None:
    tensors = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
    for linear in weights.layout.matrices:
        tensor = tensors[linear.weight]
        rows = slice(linear.first_row, linear.first_row + linear.num_rows)
        np.testing.assert_array_equal(
            unpacked(weights, linear), dequantized(tensor.tensor_type.name, tensor.data[rows])
        )
    for linear, place in weights.layout.biases.items():
        assert linear.bias is not None
        first, bias = linear.first_row, tensors[linear.bias].data
        found = np.frombuffer(weights.memory, dtype="<f4", count=place.size, offset=place.offset)
        np.testing.assert_array_equal(found, bias[first : first + place.size])
    for norm, place in weights.layout.norms.items():
        found = np.frombuffer(weights.memory, dtype="<f4", count=place.size, offset=place.offset)
        np.testing.assert_array_equal(found, tensors[norm.weight or ""].data * np.float32(norm.scale))


@pytest.mark.parametrize("type_name", ALL_TYPES)
def test_every_type_is_packed_without_loss(tmp_path: Path, type_name: str) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel(type=type_name, num_layers=1, vocab_size=263, **SHAPE))
    weights = load(path)
    check(path, weights)
    # Norms, and rows that fill a tile up, weigh more in a model as small as this one.
    growth = 2.8 if type_name in GRID_TYPES else 1.3  # entries of grids are unpacked
    assert weights.layout.num_bytes <= growth * sum(t.n_bytes for t in GGUFReader(path).tensors)


@pytest.mark.parametrize("architecture", ["granite", "phi3", "qwen2"])
def test_scaled_norms_fused_matrices_and_biases_arrive(tmp_path: Path, architecture: str) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel(architecture=architecture, type="Q8_0"))
    check(path, load(path, tmp_path / "packed"))


def test_a_tied_head_is_there_once(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel(has_head=False))
    weights = load(path)
    check(path, weights)
    own = write_tiny_model(tmp_path / "own.gguf", TinyModel())
    assert load(own).layout.num_bytes - weights.layout.num_bytes == _native.packed_bytes(0, 263, 64)


def test_pieces_and_threads_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel(type="Q4_K", **SHAPE))
    whole = load(path, threads=1)
    monkeypatch.setattr("stoker.backends.native.weights._PIECE_BYTES", 3000)
    for threads in (1, 3):
        assert load(path, threads=threads).memory[:] == whole.memory[:]
    assert load(path, tmp_path / "packed").memory[:] == whole.memory[:]


def test_the_second_start_packs_nothing(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel(type="Q4_0"))
    told: list[tuple[int, int]] = []
    first = load(path, tmp_path / "packed", progress=lambda done, total: told.append((done, total)))
    assert first.is_shared
    assert told[-1][0] == told[-1][1] > 0
    told.clear()
    second = load(path, tmp_path / "packed", progress=lambda done, total: told.append((done, total)))
    assert second.is_shared
    assert told == []
    assert second.memory[:] == first.memory[:]


def test_another_model_of_the_same_name_is_packed_anew(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel(seed=1))
    old = load(path, tmp_path / "packed")
    status = path.stat()
    write_tiny_model(path, TinyModel(seed=2))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    new = load(path, tmp_path / "packed")
    check(path, new)
    assert new.memory[:] != old.memory[:]


def test_without_a_directory_that_can_be_written_they_stay_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel())
    (tmp_path / "packed").touch()
    with caplog.at_level(logging.INFO):
        weights = load(path, tmp_path / "packed")
    assert not weights.is_shared
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
    check(path, weights)


def test_a_file_that_changes_while_it_is_packed_is_refused(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel())

    def touch(_done: int, _total: int) -> None:
        os.utime(path, ns=(1, 1))

    with pytest.raises(ModelFileInvalid, match="changed while"):
        load(path, tmp_path / "packed", progress=touch)


def test_vectors_must_be_floats(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel())
    data = bytearray(path.read_bytes())
    at = data.index(b"blk.0.attn_norm.weight") + len("blk.0.attn_norm.weight") + 4 + 8
    data[at : at + 4] = (26).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(ModelUnsupported, match=r"`blk\.0\.attn_norm\.weight` is of type I32"), opened(path):
        pass


def test_nobody_is_asked_to_compute_with_a_matrix_of_integers(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel())
    data = bytearray(path.read_bytes())
    at = data.index(b"blk.0.attn_k.weight") + len("blk.0.attn_k.weight") + 4 + 2 * 8
    data[at : at + 4] = (26).to_bytes(4, "little")
    path.write_bytes(data)
    with (
        pytest.raises(ModelFileInvalid, match=r"`blk\.0\.attn_k\.weight` is of type I32, not a weight type"),
        opened(path),
    ):
        pass


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_vectors_may_be_of_any_float_type(tmp_path: Path, kind: str) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel(architecture="qwen2", num_layers=1, vector_type=kind))
    weights = load(path)
    stored = {tensor.name: dequantized(tensor.tensor_type.name, tensor.data) for tensor in GGUFReader(path).tensors}
    layout = weights.layout
    places = [(norm.weight, place) for norm, place in layout.norms.items()]
    places += [(linear.bias or "", place) for linear, place in layout.biases.items()]
    assert len(places) == 6
    for name, place in places:
        packed = np.frombuffer(weights.memory, dtype="<f4", count=place.size, offset=place.offset)
        np.testing.assert_array_equal(packed, stored[name or ""])


def test_models_of_one_shape_and_time_are_not_taken_for_each_other(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    for seed in (1, 2):
        write_tiny_model(path, TinyModel(seed=seed))
        os.utime(path, ns=(10**18, 10**18))
        check(path, load(path, tmp_path / "packed"))
    assert len(list((tmp_path / "packed").glob("*.stoker"))) == 2


def test_a_file_in_small_pages_is_read_into_memory_if_it_is_not_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel(type="Q4_K", **SHAPE))
    monkeypatch.setattr("stoker.backends.native.packed_threads._PIECE_BYTES", 5000)
    monkeypatch.setattr("stoker.backends.native.weights.lies_in_small_pages", lambda _: True)
    with opened(path) as (parts, layout):
        shared = load_weights(parts, layout, directory=tmp_path / "packed", max_bytes=PLENTY, threads=1)
        copied = load_weights(parts, layout, directory=tmp_path / "packed", max_bytes=PLENTY, threads=1, may_copy=True)
    assert (shared.is_shared, copied.is_shared) == (True, False)
    check(path, copied)


@pytest.mark.parametrize("may_copy", [False, True])
def test_a_packed_file_is_read_in_huge_pages_before_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, may_copy: bool
) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel(type="Q4_K", **SHAPE))
    read = list[os.stat_result]()
    with opened(path) as (parts, layout):
        load_weights(parts, layout, directory=tmp_path / "packed", max_bytes=PLENTY, threads=1).close()
        monkeypatch.setattr(
            "stoker.backends.native.packed_file.read_in_huge_pages", lambda file: read.append(os.fstat(file))
        )
        load_weights(
            parts, layout, directory=tmp_path / "packed", max_bytes=PLENTY, threads=1, may_copy=may_copy
        ).close()
    (packed,) = (tmp_path / "packed").glob("*.stoker")
    assert [found.st_ino for found in read] == [packed.stat().st_ino]


def test_a_file_is_read_into_memory_that_comes_from_all_nodes(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel(type="Q4_K", **SHAPE))
    with opened(path) as (parts, layout):
        for may_copy in (False, True, True):
            sizes: dict[str, Any] = {"max_bytes": PLENTY, "threads": 1, "may_copy": may_copy, "is_spread": True}
            weights = load_weights(parts, layout, directory=tmp_path / "packed", **sizes)
            assert weights.is_shared == (not may_copy)
            check(path, weights)


def load_alone(path: Path, directory: Path) -> Weights:
    """As an engine does that has no replicas."""
    with opened(path) as (parts, layout):
        return load_weights(parts, layout, directory=directory, max_bytes=PLENTY, threads=2, may_copy=True)


def held_lock(path: Path, directory: Path) -> FileLock:
    """Of the packed file: while it is held, no file can be written."""
    with opened(path) as (parts, layout):
        return FileLock(directory / f".{fingerprint(parts, layout)}.lock")


def test_a_model_answers_before_its_packed_file_is_written(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel(type="Q4_K", **SHAPE))
    packed = tmp_path / "packed"
    packed.mkdir()
    with held_lock(path, packed):
        weights = load_alone(path, packed)
        check(path, weights)
        assert not list(packed.glob("*.stoker"))
    weights.close()
    assert len(list(packed.glob("*.stoker"))) == 1
    found = load_alone(path, packed)
    assert found.writing is None
    assert found.memory[:] == weights.memory[:]


def test_a_packed_file_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel(type="Q4_K", **SHAPE))
    packed = tmp_path / "packed"
    packed.mkdir()
    with opened(path) as (parts, layout):
        name = fingerprint(parts, layout)
    lock = held_lock(path, packed)
    with lock:
        memory = load(path).memory
        writing = Writing(PackedStore(packed, PLENTY), name, memory, finish_s=0)
        writing.close()
    for thread in threading.enumerate():  # it has the lock now, and sees that no thread waits for the file
        if thread.name == "stoker-packed-file":
            thread.join(BOUND_S)
    assert not list(packed.glob("*.stoker"))
    assert not list(packed.glob("*.part"))


def test_a_model_that_changes_while_it_is_packed_is_refused(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel(type="Q4_K", **SHAPE))

    def change(_done: int, _total: int) -> None:
        os.utime(path, ns=(1, 1))

    with opened(path) as (parts, layout), pytest.raises(ModelFileInvalid, match="was changed"):
        load_weights(parts, layout, directory=tmp_path, max_bytes=PLENTY, threads=1, progress=change, may_copy=True)
    assert not list(tmp_path.glob("*.stoker"))


SMAPS = """7f10-7f20 r--s 00010000 fe:00 12 /packed/a.stoker
Size:               1024 kB
FilePmdMapped:         0 kB
VmFlags: rd sh
{address:x}-fff0 r--s 00010000 fe:00 12 /packed/b.stoker
Size:               1024 kB
FilePmdMapped:      {kib} kB
VmFlags: rd sh
"""


@pytest.mark.parametrize(
    ("kib", "enabled", "num_bytes", "expected"),
    [
        (0, "always [madvise] never", 8 << 20, True),
        (4096, "always [madvise] never", 8 << 20, True),
        (8192, "always [madvise] never", 8 << 20, False),
        (0, "always madvise [never]", 8 << 20, False),
        (0, "always [madvise] never", 1 << 20, False),
        (None, "always [madvise] never", 8 << 20, False),
    ],
)
def test_what_the_kernel_says_about_a_mapping(
    tmp_path: Path, kib: int | None, enabled: str, num_bytes: int, expected: bool
) -> None:
    memory = mmap.mmap(-1, num_bytes)
    address = np.frombuffer(memory, dtype=np.uint8).__array_interface__["data"][0]
    (tmp_path / "enabled").write_text(enabled)
    if kib is not None:
        (tmp_path / "smaps").write_text(SMAPS.format(address=address, kib=kib))
    assert lies_in_small_pages(memory, tmp_path / "smaps", tmp_path / "enabled") is expected
