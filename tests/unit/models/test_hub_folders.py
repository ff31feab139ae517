"""Whole repositories of safetensors, as vLLM takes them."""

from pathlib import Path

import pytest

from stoker.errors import DownloadFailed, ModelFileNotFound
from stoker.models.store import list_models, resolve_folder
from tests.unit.models.fake_hub import FakeHub

PARTS = [
    "config.json",
    "tokenizer.json",
    "chat_template.jinja",
    "model.safetensors.index.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "1_Pooling/config.json",
]
OTHERS = ["consolidated.safetensors", "pytorch_model.bin", "onnx/model.onnx", "onnx/config.json", "README.md"]


@pytest.fixture
def repository(hub: FakeHub) -> FakeHub:
    for name in (*PARTS, *OTHERS, "../out.json"):
        hub.files["org/whole", name] = name.encode()
    return hub


@pytest.mark.parametrize("name", ["hf:org/whole", "org/whole", "https://huggingface.co/org/whole/tree/main"])
def test_a_repository_becomes_a_folder(
    name: str, repository: FakeHub, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = resolve_folder(name)
    found = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    assert sorted(file for file in found if not _is_note(file)) == sorted(PARTS)
    assert all((folder / part).read_bytes() == part.encode() for part in PARTS)
    assert list_models() == []
    num_requests = len(repository.requests)
    assert resolve_folder("hf:org/whole") == folder
    assert len(repository.requests) == num_requests, "what is here is not asked for again"


def test_what_was_lost_is_fetched_again(repository: FakeHub, cache: Path) -> None:
    folder = resolve_folder("hf:org/whole")
    (folder / "config.json").unlink()
    num_files = len(repository.file_requests)
    resolve_folder("hf:org/whole")
    assert (folder / "config.json").is_file()
    assert len(repository.file_requests) == num_files + 1


def test_a_path_stays_a_path(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "whole").mkdir(parents=True)
    assert resolve_folder("org/whole") == Path("org/whole")
    assert resolve_folder("./nothing") == Path("nothing")
    assert hub.requests == []


def test_what_is_no_such_repository_is_told(hub: FakeHub, cache: Path) -> None:
    with pytest.raises(ModelFileNotFound, match="has no safetensors"):
        resolve_folder("hf:org/tiny")
    with pytest.raises(ModelFileNotFound, match="should look like org/repo"):
        resolve_folder("hf:org/tiny:tiny.gguf")
    with pytest.raises(DownloadFailed):
        resolve_folder("hf:org/absent")


def _is_note(file: str) -> bool:
    is_receipt = file.endswith(".json") and file.removesuffix(".json") in PARTS
    return is_receipt or Path(file).name.startswith(".") or file.endswith(".lock")
