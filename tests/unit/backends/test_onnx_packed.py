"""Packed weights of ONNX graphs: written once, mapped by every process, made again when they are not whole."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from stoker.backends.onnx.packed_folder import MODEL, WEIGHTS, PackedFolders, fingerprint
from stoker.core.batch import Chunk
from stoker.models.onnx_graph import read_onnx_graph
from tests.onnx_models import TinyOnnx, write_graph
from tests.onnx_runs import open_backend, run

PLENTY = 1 << 30
TOKENS = tuple(range(40, 80))


class Packer:
    """Writes both files and counts how often."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self, folder: Path) -> None:
        self.num_calls += 1
        (folder / MODEL).write_bytes(b"graph")
        (folder / WEIGHTS).write_bytes(b"w" * 1000)


@pytest.mark.parametrize("model", [TinyOnnx(), TinyOnnx(attention="plain", external=True)], ids=["inline", "external"])
def test_packed_weights_give_the_same_numbers(tmp_path: Path, model: TinyOnnx) -> None:
    """The rewritten graph is what is packed: the choice of rows is in it."""
    write_graph(tmp_path / "model.onnx", model)
    with open_backend(tmp_path / "model.onnx") as backend:
        expected = run(backend, Chunk(0, 0, TOKENS, 3))
    for _ in range(2):
        with open_backend(tmp_path / "model.onnx", packed_directory=tmp_path / "packed") as backend:
            assert (run(backend, Chunk(0, 0, TOKENS, 3)) == expected).all()
    [folder] = (tmp_path / "packed").glob("*.onnx")
    assert {file.name for file in folder.iterdir()} == {MODEL, WEIGHTS, "whole.json"}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_who_finds_packed_weights_holds_none_of_its_own(tmp_path: Path) -> None:
    """S1-2: replicas are processes, and what they map is in memory once."""
    model = TinyOnnx(num_heads=16, num_kv_heads=16, head_size=64, feed_forward=1024, num_layers=1)
    write_graph(tmp_path / "model.onnx", model)
    weights = (tmp_path / "model.onnx").stat().st_size
    with open_backend(tmp_path / "model.onnx", packed_directory=tmp_path / "packed"):
        pass
    assert (next((tmp_path / "packed").glob("*.onnx")) / WEIGHTS).stat().st_size > 1.5 * weights, (
        "as they were, and packed"
    )
    # In processes of their own: here memory may be free already that others had.
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as processes:
        kept = processes.submit(own_bytes_of_a_model, tmp_path / "model.onnx", None).result(60)
        mapped = processes.submit(own_bytes_of_a_model, tmp_path / "model.onnx", tmp_path / "packed").result(60)
    assert kept - mapped > weights / 2  # what a process holds without any weights is in both


def own_bytes_of_a_model(path: Path, packed_directory: Path | None) -> int:
    before = own_bytes()
    with open_backend(path, packed_directory=packed_directory) as backend:
        run(backend, Chunk(0, 0, TOKENS, 1))
        is_mapped = packed_directory is not None and str(packed_directory) in Path("/proc/self/maps").read_text()
        assert is_mapped == (packed_directory is not None)
        return own_bytes() - before


def own_bytes() -> int:
    """Memory of this process that no file is behind."""
    words = Path("/proc/self/smaps_rollup").read_text().split()
    return int(words[words.index("Pss_Anon:") + 1]) * 1024


def cut(folder: Path) -> None:
    os.truncate(folder / WEIGHTS, 10)


def remove_note(folder: Path) -> None:
    (folder / "whole.json").unlink()


def spoil_note(folder: Path) -> None:
    (folder / "whole.json").write_text("{")


@pytest.mark.parametrize("spoil", [cut, remove_note, spoil_note, shutil.rmtree])
def test_what_is_not_whole_is_made_again(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    pack, folders = Packer(), PackedFolders(tmp_path, PLENTY)
    found = folders.open("name", 1000, pack)
    assert found is not None
    assert folders.open("name", 1000, pack) == found
    assert pack.num_calls == 1
    spoil(found)
    (tmp_path / ".name.part").mkdir()  # of a process that was killed
    assert PackedFolders(tmp_path, PLENTY).open("name", 1000, pack) == found
    assert pack.num_calls == 2
    assert (found / WEIGHTS).stat().st_size == 1000
    assert not (tmp_path / ".name.part").exists()


def test_what_was_not_opened_for_longest_makes_room(tmp_path: Path) -> None:
    folders, pack = PackedFolders(tmp_path, 6000), Packer()
    for name in ("a", "b"):
        folders.open(name, 1000, pack)
    os.utime(tmp_path / "a.onnx", ns=(1, 1))
    folders.open("a", 1000, pack)  # opened again: b is the oldest now
    os.utime(tmp_path / "b.onnx", ns=(2, 2))
    folders.open("c", 1500, pack)
    assert sorted(path.name for path in tmp_path.glob("*.onnx")) == ["a.onnx", "c.onnx"]


def test_without_a_place_each_packs_for_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_graph(tmp_path / "model.onnx", TinyOnnx())
    (tmp_path / "file").write_text("no folder")
    with (
        caplog.at_level(logging.WARNING),
        open_backend(tmp_path / "model.onnx", packed_directory=tmp_path / "file" / "packed") as backend,
    ):
        assert run(backend, Chunk(0, 0, TOKENS, 1)).shape == (1, 260)
    assert "each replica packs its weights for itself" in caplog.text
    pack = Packer()
    assert PackedFolders(tmp_path, PLENTY).open("large", 1 << 60, pack) is None
    assert "MiB may be needed" in caplog.text
    assert pack.num_calls == 0


def test_a_name_stands_for_files_and_for_what_packs_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.onnx"
    write_graph(path, TinyOnnx(external=True))
    graph = read_onnx_graph(path)
    names = [fingerprint(graph, "1"), fingerprint(graph, "2")]
    os.utime(tmp_path / "model.onnx_data", ns=(5, 5))
    names.append(fingerprint(graph, "1"))
    (tmp_path / "cpuinfo").write_text("model name : another\nMHz : 1\n")
    monkeypatch.setattr("stoker.backends.onnx.packed_folder._CPU_INFO", tmp_path / "cpuinfo")
    names.append(fingerprint(graph, "1"))
    assert len(set(names)) == 4
    (tmp_path / "cpuinfo").write_text("model name : another\nMHz : 2\n")
    assert fingerprint(graph, "1") == names[-1]
