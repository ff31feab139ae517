"""A folder is written whole or not at all, and nothing is overwritten that nobody gave up."""

from __future__ import annotations

import errno
import resource
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from gguf import GGUFWriter

from stoker.errors import InvalidInput, ModelFileInvalid, ModelFileNotFound, ModelUnsupported, ResourceExhausted
from stoker.export import ExportOptions, export_model
from tests.tiny_models import TinyModel, write_tiny_model
from tests.unit.export.written import Written

FILES = {
    *("model.onnx", "model.onnx.data", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("config.json", "generation_config.json", "genai_config.json"),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_tiny_model(tmp_path / "m.gguf", TinyModel())


class Watch:
    """Satisfies `Progress`; may raise at the end of the first transfer."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.totals: list[int | None] = []
        self.labels: list[str] = []
        self.done = 0
        self.is_closed = False
        self._error = error

    def start(self, total_bytes: int | None, label: str) -> None:
        self.totals.append(total_bytes)
        self.labels.append(label)

    def advance(self, num_bytes: int) -> None:
        self.done += num_bytes
        if self._error is not None and self.done == self.totals[-1]:
            raise self._error

    def close(self) -> None:
        self.is_closed = True


def test_everything_is_there_and_nothing_else(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    report = export_model(path, folder)
    assert {entry.name for entry in folder.iterdir()} == FILES
    assert report.num_bytes == sum(entry.stat().st_size for entry in folder.iterdir())
    assert (report.folder, report.context_size) == (folder, 4096)


def test_progress_counts_all_bytes(path: Path, tmp_path: Path) -> None:
    watch = Watch()
    export_model(path, tmp_path / "onnx", progress=watch)
    (total,) = watch.totals
    assert watch.done == total
    assert total == sum(length for _, _, length in Written(tmp_path / "onnx").external())
    assert watch.labels == ["writing onnx"]
    assert watch.is_closed


def test_an_empty_folder_is_taken_and_a_full_one_is_not(path: Path, tmp_path: Path) -> None:
    (tmp_path / "onnx").mkdir()
    export_model(path, tmp_path / "onnx")
    before = {entry.name: entry.stat().st_mtime_ns for entry in (tmp_path / "onnx").iterdir()}
    with pytest.raises(InvalidInput, match=r"onnx is not empty; .*--force"):
        export_model(path, tmp_path / "onnx")
    assert {entry.name: entry.stat().st_mtime_ns for entry in (tmp_path / "onnx").iterdir()} == before


def test_force_replaces_what_has_the_same_names(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "onnx"
    folder.mkdir()
    for name in ("model.onnx", "config.json", "mine.txt"):
        (folder / name).write_text("mine")
    export_model(path, folder, force=True)
    assert {entry.name for entry in folder.iterdir()} == {*FILES, "mine.txt"}
    assert (folder / "mine.txt").read_text() == "mine"
    assert "layers.0.attention_norm" in Written(folder).nodes
    assert (folder / "config.json").read_text() != "mine"


def test_the_folder_is_a_file(path: Path, tmp_path: Path) -> None:
    (tmp_path / "onnx").write_text("x")
    with pytest.raises(InvalidInput, match="onnx is a file, not a folder"):
        export_model(path, tmp_path / "onnx", force=True)
    with pytest.raises(InvalidInput, match="cannot be written"):
        export_model(path, tmp_path / "onnx" / "below")


@contextmanager
def room(num_bytes: int) -> Generator[None]:
    """No file can grow beyond this: the system fails as it does on a full disk."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


@pytest.mark.parametrize("is_there", [False, True], ids=["new folder", "old folder"])
@pytest.mark.parametrize("num_bytes", [1000, 400_000], ids=["no room", "not enough room"])
def test_a_full_disk_leaves_nothing(path: Path, tmp_path: Path, num_bytes: int, is_there: bool) -> None:
    folder = tmp_path / "above" / "onnx"
    if is_there:
        folder.mkdir(parents=True)
        (folder / "model.onnx").write_text("old")
    watch = Watch()
    with room(num_bytes), pytest.raises(ResourceExhausted, match=r"disk of .*onnx is full; nothing was left"):
        export_model(path, folder, force=True, progress=watch)
    assert watch.done == 0  # nothing was written in vain
    if is_there:
        assert [(entry.name, entry.read_text()) for entry in folder.iterdir()] == [("model.onnx", "old")]
    else:
        assert not (tmp_path / "above").exists()


def test_a_disk_that_fills_up_late_leaves_nothing(path: Path, tmp_path: Path) -> None:
    class FillsUp(Watch):
        def advance(self, num_bytes: int) -> None:
            super().advance(num_bytes)
            if self.done == self.totals[-1]:
                resource.setrlimit(resource.RLIMIT_FSIZE, (1000, old[1]))

    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(ResourceExhausted, match="full"):
            export_model(path, tmp_path / "onnx", progress=FillsUp())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert not (tmp_path / "onnx").exists()


def test_a_folder_that_is_half_replaced_does_not_look_whole(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = export_model(path, tmp_path / "onnx").folder
    moved = list[str]()

    def fail_at_the_third(source: Path, target: Path) -> None:
        assert not (folder / "model.onnx").exists()
        moved.append(target.name)
        if len(moved) == 3:
            raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr("os.replace", fail_at_the_third)
    with pytest.raises(InvalidInput, match="the disk is broken"):
        export_model(path, folder, force=True)
    assert "model.onnx" not in moved
    assert not (folder / "model.onnx").exists()


def test_an_interrupted_export_leaves_nothing(path: Path, tmp_path: Path) -> None:
    watch = Watch(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        export_model(path, tmp_path / "onnx", progress=watch)
    assert not (tmp_path / "onnx").exists()
    assert watch.is_closed


def test_what_a_killed_export_left_is_no_hindrance(path: Path, tmp_path: Path) -> None:
    (tmp_path / "onnx" / ".export-abc").mkdir(parents=True)
    export_model(path, tmp_path / "onnx")
    assert (tmp_path / "onnx" / "model.onnx").exists()


def test_what_cannot_be_exported_touches_no_folder(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "m.gguf", "rwkv6")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(
        ModelUnsupported, match=r"m.gguf cannot be exported: .*`rwkv6` of .*: mixers that have no kernels"
    ):
        export_model(tmp_path / "m.gguf", tmp_path / "onnx")
    with pytest.raises(ModelFileNotFound, match=r"none\.gguf"):
        export_model(tmp_path / "none.gguf", tmp_path / "onnx")
    (tmp_path / "text.gguf").write_text("hello there, this is no model")
    with pytest.raises(ModelFileInvalid, match="not a GGUF file"):
        export_model(tmp_path / "text.gguf", tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (TinyModel(architecture="cohere2"), "`cohere2` can be run, but not exported"),
        (TinyModel(num_experts=8), "different sizes, or experts"),
        (TinyModel(layer_sizes=(96, 64)), "different sizes, or experts"),
    ],
)
def test_what_can_only_be_run_is_refused(tmp_path: Path, model: TinyModel, message: str) -> None:
    with pytest.raises(ModelUnsupported, match=message):
        export_model(write_tiny_model(tmp_path / "m.gguf", model), tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()


def test_a_type_that_nobody_reads_is_refused_by_name(tmp_path: Path) -> None:
    path = write_tiny_model(
        tmp_path / "m.gguf", TinyModel(type="TQ1_0", hidden_size=256, feed_forward_size=512, head_size=64)
    )
    with pytest.raises(ModelUnsupported, match=r"cannot be exported: .*`token_embd.*TQ1_0"):
        export_model(path, tmp_path / "onnx")


def test_a_rotation_that_the_fused_operator_has_not_is_refused(tmp_path: Path) -> None:
    model = TinyModel(architecture="phi3", keys={"rope.dimension_count": 12})
    path = write_tiny_model(tmp_path / "m.gguf", model)
    with pytest.raises(ModelUnsupported, match=r"cannot rotate 12 elements.*plain attention"):
        export_model(path, tmp_path / "onnx")
    export_model(path, tmp_path / "onnx", ExportOptions(attention="plain"))


@pytest.mark.parametrize("size", [0, -1, 1 << 40])
def test_impossible_contexts(path: Path, tmp_path: Path, size: int) -> None:
    with pytest.raises(InvalidInput, match="is not possible") as failure:
        export_model(path, tmp_path / "onnx", ExportOptions(context_size=size))
    assert failure.value.fields["parameter"] == "ctx_size"
