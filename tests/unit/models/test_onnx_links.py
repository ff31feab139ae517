"""Folders as the hub's cache lays them out: every file is a link to one with another name, elsewhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stoker.core.batch import Chunk
from stoker.errors import ModelUnsupported
from stoker.models.onnx_graph import read_onnx_graph
from stoker.models.onnx_links import follow_links
from tests.onnx_models import TinyOnnx, write_graph
from tests.onnx_runs import open_backend, run

TOKENS = tuple(range(40, 60))


def linked(folder: Path, attention: str) -> Path:
    """`snapshots/1/onnx/model.onnx`, whose files are `blobs/0 …`."""
    snapshot, blobs = folder / "snapshots" / "1" / "onnx", folder / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    write_graph(snapshot / "model.onnx", TinyOnnx(attention=attention, external=True))  # type: ignore[arg-type]
    for index, file in enumerate(sorted(snapshot.iterdir())):
        file.rename(blobs / str(index))
        file.symlink_to(Path("../../../blobs") / str(index))
    return snapshot / "model.onnx"


@pytest.mark.parametrize("attention", ["fused", "plain"])
@pytest.mark.parametrize("packs", [False, True])
def test_weights_behind_links_are_found(tmp_path: Path, attention: str, packs: bool) -> None:
    path = linked(tmp_path / "cache", attention)
    write_graph(tmp_path / "model.onnx", TinyOnnx(attention=attention))  # type: ignore[arg-type]
    with open_backend(tmp_path / "model.onnx") as backend:
        expected = run(backend, Chunk(0, 0, TOKENS, 3))
    with open_backend(path, packed_directory=tmp_path / "packed" if packs else None) as backend:
        assert (run(backend, Chunk(0, 0, TOKENS, 3)) == expected).all()


def test_a_folder_without_links_stays_as_it_is(tmp_path: Path) -> None:
    write_graph(tmp_path / "model.onnx", TinyOnnx(external=True))
    graph = read_onnx_graph(tmp_path / "model.onnx")
    assert follow_links(graph) is graph
    (tmp_path / "link").symlink_to(tmp_path)
    graph = read_onnx_graph(tmp_path / "link" / "model.onnx")
    assert follow_links(graph) is graph


def test_links_into_several_folders_are_refused(tmp_path: Path) -> None:
    path = linked(tmp_path, "fused")
    graph = read_onnx_graph(path)
    moved = tmp_path / "elsewhere"
    moved.write_bytes(graph.weight_files[1].read_bytes())
    with pytest.raises(ModelUnsupported, match=f"several folders .*{tmp_path}"):
        follow_links(replace(graph, weight_files=(*graph.weight_files, moved)))
