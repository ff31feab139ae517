"""What a user may call a model of the hub, and what is no such name."""

from pathlib import Path

import pytest

from stoker.errors import DownloadFailed, ModelFileNotFound
from stoker.models.store import list_models, resolve
from tests.unit.models.fake_hub import FakeHub


def test_hub_names(hub: FakeHub, cache: Path, content: bytes) -> None:
    hub.files["org/many", "m-Q8_0.gguf"] = content
    hub.files["org/many", "m-Q4_K_M.gguf"] = content
    path = resolve("hf:org/many")
    assert path.name == "m-Q4_K_M.gguf"
    assert resolve("hf:org/many:Q8_0").name == "m-Q8_0.gguf"
    num_requests = len(hub.requests)
    assert resolve("hf:org/many") == path
    assert resolve("hf:org/many:m-Q4_K_M.gguf") == path
    assert len(hub.requests) == num_requests


@pytest.mark.parametrize(
    "name",
    [
        "org/tiny",
        "org/tiny:tiny.gguf",
        "hf.co/org/tiny",
        "hf.co/org/tiny:latest",
        "hf.co/org/tiny:tiny.gguf",
        "huggingface.co/org/tiny",
        "https://huggingface.co/org/tiny",
        "https://huggingface.co/org/tiny/",
        "https://huggingface.co/org/tiny/tree/main",
        "https://huggingface.co/org/tiny/blob/main/tiny.gguf",
        "https://hf.co/org/tiny/resolve/main/tiny.gguf?download=true",
    ],
)
def test_other_ways_to_name_the_same(
    name: str, hub: FakeHub, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve(name) == resolve("hf:org/tiny:tiny.gguf")
    assert [model.name for model in list_models()] == ["hf:org/tiny:tiny.gguf"]


def test_a_path_is_not_asked_of_the_hub(
    hub: FakeHub, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org").mkdir()
    for model in ("org/tiny", "other/tiny.gguf", "./org/tiny"):
        with pytest.raises(ModelFileNotFound, match=r"there is no (such file|file or folder)"):
            resolve(model)
    assert hub.requests == []


def test_what_is_neither_a_file_nor_on_the_hub(
    hub: FakeHub, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DownloadFailed, match=r"there is no file no/such, and hub no/such: no such repository"):
        resolve("no/such")
