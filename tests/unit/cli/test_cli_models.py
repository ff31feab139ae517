"""Names, sizes and searches on the command line, against a hub of our own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest

from tests.unit.cli.conftest import Stoker
from tests.unit.models.fake_hub import FakeHub, send
from tests.unit.models.tiny_gguf import write_tiny_gguf

REPO, FILE = "Qwen/Qwen3-4B-GGUF", "Qwen3-4B-Q4_K_M.gguf"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    """With one file of a well-known model, and no proxy or token in the way."""
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    huggingface_hub.close_session()
    content = write_tiny_gguf(tmp_path / "made.gguf").read_bytes()
    with FakeHub({(REPO, FILE): content}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub
    huggingface_hub.close_session()


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch, hub: FakeHub) -> None:
    monkeypatch.setattr(hub, "behave", lambda request: send(request, 503, b"") or True)


def test_all_known_models_are_listed_one_a_line(stoker: Stoker) -> None:
    lines = stoker("models", "--all").out.splitlines()
    assert lines[0].split() == ["MODEL", "SIZE", "CONTEXT", "CAN", "LICENSE", "MEMORY", "FITS", "PULLED"]
    assert len(lines) > 50
    row = next(line for line in lines if line.startswith("qwen3:4b "))
    assert row.split() == [
        "qwen3:4b",
        "2.5",
        "GB",
        "40960",
        "chat,",
        "tools,",
        "reasoning",
        "Apache-2.0",
        *row.split()[8:],
    ]


def test_show_of_a_model_of_the_catalog_downloads_nothing(stoker: Stoker, tmp_path: Path) -> None:
    facts = json.loads(stoker("show", "gemma3", "--json").out)
    assert (facts["title"], facts["context"], facts["here"]) == ("Gemma 3 270M (base model), Q4_K_M", 32768, False)
    assert not list((tmp_path / "cache").rglob("*.gguf"))


def test_models_of_the_catalog_have_all_columns(stoker: Stoker) -> None:
    rows = {row["model"]: row for row in json.loads(stoker("models", "--all", "--json").out)}
    assert (rows["smollm2"]["context"], rows["smollm2"]["license"], rows["smollm2"]["can"]) == (
        8192,
        "Apache-2.0",
        ["chat"],
    )
    assert rows["smollm2"]["memory_bytes"] > rows["smollm2"]["size_bytes"]


def test_what_fits_follows_the_free_memory(stoker: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.models.memory.available_memory", lambda: 5 * 10**9)
    rows = {row["model"]: row for row in json.loads(stoker("models", "--all", "--json").out)}
    assert (rows["qwen3:4b"]["fits"], rows["qwen3:32b"]["fits"]) == (True, False)
    assert rows["qwen3:8b"]["aliases"] == ["qwen3"]


@pytest.mark.usefixtures("hub")
def test_a_known_name_says_what_it_costs_and_comes(stoker: Stoker, tmp_path: Path) -> None:
    done = stoker("pull", "qwen3:4b")
    assert done.out == f"{tmp_path}/cache/models/hf/{REPO}/{FILE}\n"
    assert "qwen3:4b: a download of about 2.5 GB (Apache-2.0); takes about 4.0 GB of memory" in done.err
    assert "a download of" not in stoker("pull", "qwen3:4b").err
    (row,) = [row for row in json.loads(stoker("models", "--json").out) if row["model"] == "qwen3:4b"]
    assert row["title"] == f"hf:{REPO}:{FILE}"
    known = json.loads(stoker("models", "--all", "--json").out)
    assert [row["model"] for row in known if row["is_here"]] == ["qwen3:4b"]


@pytest.mark.usefixtures("hub")
def test_a_model_that_will_not_fit_is_told_before_it_comes(stoker: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.models.memory.available_memory", lambda: 10**9)
    assert "but only 1.0 GB are free: see `stoker models --all`" in stoker("pull", "qwen3:4b").err


def test_search_lists_known_names_and_then_the_hub(stoker: Stoker, hub: FakeHub) -> None:
    found = json.dumps([{"id": "a/qwen-coder-GGUF", "downloads": 7, "tags": ["license:mit"]}]).encode()
    hub.behave = lambda request: send(request, 200, found, {}) or True
    done = stoker("search", "qwen3", "coder")
    assert [line.split()[0] for line in done.out.splitlines()] == ["MODEL", "qwen3-coder:30b", "a/qwen-coder-GGUF"]
    listed = json.loads(stoker("search", "qwen3", "coder", "--json").out)
    assert listed[1] == {"model": "a/qwen-coder-GGUF", "downloads": 7, "license": "mit"}


@pytest.mark.usefixtures("no_hub")
def test_a_hub_that_is_away_leaves_the_known_names(stoker: Stoker) -> None:
    done = stoker("search", "gemma4")
    assert done.code == 0
    assert "gemma4:e4b" in done.out
    assert "only well-known models are listed" in done.err
    assert stoker("search", "nothing-like-it").code == 3


def test_a_pull_that_is_interrupted_says_that_it_can_go_on(stoker: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("stoker.models.store.resolve", interrupted)
    done = stoker("pull", "qwen3:4b")
    assert (done.code, done.out) == (130, "")
    assert "to resume the download" in done.err
