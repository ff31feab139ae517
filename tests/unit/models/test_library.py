"""The table of well-known models: every name leads to one file of a repository, and says what it will cost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stoker.models.catalog import CATALOG
from stoker.models.hub import search_models
from stoker.models.hub_choice import choose_file
from stoker.models.library import known_model, library, names_in_library, needs_of
from stoker.models.store import list_models, resolve
from stoker.runtime.served import names_of_source
from stoker.server.dialects.ollama.names import ollama_name, own_name
from tests.unit.models.fake_hub import FakeHub, send
from tests.unit.models.tiny_gguf import write_tiny_gguf

ABILITIES = {"chat", "tools", "reasoning", "code", "vision", "embeddings", "reranking"}


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    return write_tiny_gguf(tmp_path / "made.gguf").read_bytes()


def test_the_table_holds_together() -> None:
    models = library().values()
    names = [name for model in models for name in model.names]
    assert len(models) > 40
    assert len(set(names)) == len(names)
    assert not set(names) & set(CATALOG)
    for model in models:
        assert set(model.abilities) <= ABILITIES
        assert 1e7 < model.size_bytes < 1e11
        assert model.repo.count("/") == 1
        assert model.name.count(":") == 1
        assert model.license


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("qwen3:4b", "hf:Qwen/Qwen3-4B-GGUF:Q4_K_M"),
        ("QWEN3:4B", "hf:Qwen/Qwen3-4B-GGUF:Q4_K_M"),
        ("qwen3", "hf:Qwen/Qwen3-8B-GGUF:Q4_K_M"),
        ("qwen3:latest", "hf:Qwen/Qwen3-8B-GGUF:Q4_K_M"),
        ("llama3.2:3b-q8_0", "hf:bartowski/Llama-3.2-3B-Instruct-GGUF:Q8_0"),
        ("gpt-oss:20b", "hf:ggml-org/gpt-oss-20b-GGUF:mxfp4"),
        ("gemma3n", "hf:unsloth/gemma-3n-E4B-it-GGUF:Q4_K_M"),
        ("gemma3n:e2b", "hf:unsloth/gemma-3n-E2B-it-GGUF:Q4_K_M"),
    ],
)
def test_a_name_means_a_file_of_a_repository(name: str, source: str) -> None:
    found = known_model(name)
    assert found is not None
    assert found.source == source


@pytest.mark.parametrize(
    "name", ["smollm2", "gemma3", "qwen3:5000b", "org/repo", "./qwen3", "", "x" * 1000, "qwen3:4b-"]
)
def test_other_names_mean_none(name: str) -> None:
    assert known_model(name) is None


def test_another_quantization_has_another_size() -> None:
    usual, larger = known_model("qwen3:4b"), known_model("qwen3:4b-q8_0")
    assert usual is not None
    assert larger is not None
    assert 1.5 < larger.size_bytes / usual.size_bytes < 2.2


def test_a_model_comes_from_its_repository_and_is_known_by_its_name(hub: FakeHub, cache: Path, content: bytes) -> None:
    names = ("Qwen3-4B-Q4_K_M.gguf", "Qwen3-4B-Q8_0.gguf", "mmproj-Qwen3-4B-Q4_K_M.gguf")
    hub.files = {("Qwen/Qwen3-4B-GGUF", name): content for name in names}
    path = resolve("qwen3:4b")
    assert path == cache / "models" / "hf" / "Qwen" / "Qwen3-4B-GGUF" / names[0]
    (installed,) = list_models()
    assert list(names_in_library(installed.name)) == ["qwen3:4b"]
    hub.requests.clear()
    assert resolve("qwen3:4b") == path
    assert hub.requests == []


def test_a_file_of_the_same_name_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "qwen3:4b").write_bytes(content)
    assert resolve("qwen3:4b") == Path("qwen3:4b")


def test_files_as_repositories_name_them_are_found() -> None:
    files = ["gpt-oss-20b-mxfp4.gguf", "README.md"]
    assert choose_file("ggml-org/gpt-oss-20b-GGUF", files, "mxfp4") == files[0]
    parts = [f"gpt-oss-120b-mxfp4-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    assert choose_file("ggml-org/gpt-oss-120b-GGUF", parts, "mxfp4") == parts[0]


def test_a_tag_is_part_of_the_name_of_a_served_model() -> None:
    assert names_of_source("qwen3:4b") == ("qwen3:4b",)
    assert (ollama_name("qwen3:4b"), own_name("qwen3:4b")) == ("qwen3:4b", "qwen3:4b")


def test_the_memory_plan_of_a_model_that_is_not_here() -> None:
    model = known_model("qwen3:4b")
    assert model is not None
    needs = needs_of(model)
    assert needs.ctx_size == 8192
    assert needs.least_bytes > model.size_bytes + 8192 * model.kv_bytes_per_token


def test_the_hub_is_searched_for_words(hub: FakeHub) -> None:
    found = [{"id": "a/b-GGUF", "downloads": 7, "tags": ["gguf", "license:mit"]}, {"id": "c/d", "tags": []}]
    hub.behave = lambda request: send(request, 200, json_of(found), {"Content-Type": "application/json"}) or True
    first, second = search_models("qwen3 coder", limit=5)
    assert (first.id, first.downloads, first.license) == ("a/b-GGUF", 7, "mit")
    assert (second.id, second.license) == ("c/d", "")
    (path, _), *_ = hub.requests
    assert path.startswith("/api/models?search=qwen3+coder&filter=gguf&sort=downloads")


def json_of(value: object) -> bytes:
    return json.dumps(value).encode()
