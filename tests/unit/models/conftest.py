"""An empty cache, a hub of our own, and a progress bar that remembers, for the tests of this room."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest

from tests.unit.models.fake_hub import FakeHub
from tests.unit.models.tiny_gguf import write_tiny_gguf


class RecordedProgress:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.transfers: list[list[int | str | None]] = []
        self.is_closed = False

    def start(self, total_bytes: int | None, label: str) -> None:
        self.transfers.append([label, total_bytes, 0])

    def advance(self, num_bytes: int) -> None:
        self.transfers[-1][2] += num_bytes  # pyright: ignore[reportOperatorIssue]

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def progress() -> RecordedProgress:
    return RecordedProgress()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory that does not exist yet."""
    directory = tmp_path / "cache"
    monkeypatch.setenv("STOKER_CACHE_DIR", str(directory))
    return directory


@pytest.fixture
def clean_hub_client(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A fresh client that takes no proxy, no token, and waits for nobody between two attempts."""
    for name in ("HF_TOKEN", "HF_TOKEN_PATH", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr("stoker.models.hub._RESUME_PAUSE_S", 0.0)
    huggingface_hub.close_session()
    yield
    huggingface_hub.close_session()
    for thread in threading.enumerate():
        if thread.name == "stoker-hub":
            thread.join(timeout=10)
            assert not thread.is_alive()


@pytest.fixture
def fake_hub(clean_hub_client: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub that works, and that `HF_ENDPOINT` names."""
    with FakeHub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


@pytest.fixture
def silent_hub(clean_hub_client: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A hub that accepts connections and never answers, and that `HF_ENDPOINT` names."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{listener.getsockname()[1]}")
        yield


@pytest.fixture(scope="session")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small model's file."""
    return write_tiny_gguf(tmp_path_factory.mktemp("store") / "tiny.gguf", num_bytes=100_000).read_bytes()


@pytest.fixture
def hub(fake_hub: FakeHub, content: bytes) -> FakeHub:
    """A hub that has `org/tiny`."""
    fake_hub.files["org/tiny", "tiny.gguf"] = content
    return fake_hub


def leftovers(cache: Path) -> list[str]:
    """Everything in the cache but locks."""
    return sorted(path.name for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock")


RESOLVE_IN_CHILD = "import sys; from stoker.models.store import resolve; print(resolve(sys.argv[1]))"


def start_child(model: str, cache: Path) -> subprocess.Popen[str]:
    """Another process that resolves `model`, with a hub client that has never run before."""
    return subprocess.Popen(
        [sys.executable, "-c", RESOLVE_IN_CHILD, model],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"HF_HOME": str(cache.with_name("hf"))},
    )
