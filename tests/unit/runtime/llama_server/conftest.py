"""A fake llama-server for each test, and one tiny model for all of them."""

from dataclasses import replace
from pathlib import Path

import pytest

from stoker.runtime.external import incarnation
from tests.tiny_models import TinyModel, write_tiny_model
from tests.unit.runtime.llama_server.fake import VARIABLE, Fake, write_program


@pytest.fixture(scope="package")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf", TinyModel())


@pytest.fixture(scope="package")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both versions of it: `llama-server` and `old-llama-server`."""
    folder = tmp_path_factory.mktemp("programs")
    write_program(folder / "llama-server")
    write_program(folder / "old-llama-server")
    return folder


@pytest.fixture
def fake(tmp_path: Path, tiny_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setattr(incarnation, "_FIRST_PAUSE_S", 0.02)
    fake = Fake(programs / "llama-server", tmp_path, tiny_path)
    fake.plan()
    return fake


@pytest.fixture
def old_fake(fake: Fake, programs: Path) -> Fake:
    """One with the options of long ago."""
    return replace(fake, path=programs / "old-llama-server")
